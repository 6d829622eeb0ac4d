// Units of a spectrum: pairs of coefficients, marked in a bitmap when they are kept.
//
// A spectrum of 16 blocks side by side (block_transform.h) has rows of 16 floats; two rows are 16
// units. Unit u is (row 2*(u/16), row 2*(u/16)+1) at place u%16; bit u%64 of bitmap word u/64 is
// set when it is kept. Its energy is the sum of the two squares.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

// 4 rows of units, 128 floats, are one word of a bitmap.
inline constexpr std::size_t kUnitsPerWord = 64;

// Where the first coefficient of a unit is; the second is 16 floats behind.
[[nodiscard]] inline std::size_t place_of_unit(std::size_t unit) {
  return unit / 16 * 32 + unit % 16;
}

[[nodiscard]] inline float unit_energy(std::span<const float> spectrum, std::size_t unit,
                                       float scale) {
  const std::size_t at = place_of_unit(unit);
  const float re = spectrum[at] * scale;
  const float im = spectrum[at + 16] * scale;
  return re * re + im * im;
}

// Two thresholds for unit_energy, as bits of floats; 1 <= low <= high. A NaN, of either sign, is
// above all numbers, so that a spectrum that overflowed can't hide it.
struct Thresholds {
  float scale = 1;
  std::uint32_t low = 1;
  std::uint32_t high = 0x7fffffff;
};

// Bitmaps of the units that reach each threshold. Returns the sum of all energies. The spectrum has
// 128 floats a word.
double mark(std::span<const float> spectrum, const Thresholds& thresholds,
            std::span<std::uint64_t> at_least_low, std::span<std::uint64_t> at_least_high);

namespace reference {
double mark(std::span<const float> spectrum, const Thresholds& thresholds,
            std::span<std::uint64_t> at_least_low, std::span<std::uint64_t> at_least_high);
}  // namespace reference

// Calls `visit(unit)` for every bit that is set, in ascending order; units count from words[0].
template <typename Visit>
void for_units(std::span<const std::uint64_t> words, Visit&& visit) {
  for (std::size_t word = 0; word < words.size(); ++word) {
    for (std::uint64_t left = words[word]; left != 0; left &= left - 1) {
      visit(word * kUnitsPerWord + static_cast<std::size_t>(std::countr_zero(left)));
    }
  }
}

[[nodiscard]] inline std::size_t count_units(std::span<const std::uint64_t> words) {
  std::size_t count = 0;
  for (const std::uint64_t word : words) count += static_cast<std::size_t>(std::popcount(word));
  return count;
}

}  // namespace thinreduce::kernels
