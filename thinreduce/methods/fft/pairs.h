// Pairs of coefficients, which are kept or dropped together, and bitmaps of the kept ones.
//
// A spectrum of 16 blocks side by side (block_transform.h) has rows of 16 floats; two rows are 16
// pairs. Pair p is row 2*(p/16) and row 2*(p/16)+1 at column p%16; bit p%64 of bitmap word p/64 is
// set if it is kept. Its energy is the sum of the two squares.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

// A word of a bitmap covers 4 double rows, 128 floats.
inline constexpr std::size_t kPairsPerWord = 64;

// Returns the offset of a pair's first coefficient; the second follows 16 floats later.
[[nodiscard]] inline std::size_t pair_offset(std::size_t pair) {
  return pair / 16 * 32 + pair % 16;
}

[[nodiscard]] inline float pair_energy(std::span<const float> spectrum, std::size_t pair,
                                       float scale) {
  const std::size_t at = pair_offset(pair);
  const float re = spectrum[at] * scale;
  const float im = spectrum[at + 16] * scale;
  return re * re + im * im;
}

// Two thresholds for pair_energy, as bits of floats; 1 <= low <= high. A NaN of either sign is
// above every threshold, so a spectrum that overflowed is always noticed.
struct Thresholds {
  float scale = 1;
  std::uint32_t low = 1;
  std::uint32_t high = 0x7fffffff;
};

// Writes bitmaps of the pairs that reach each threshold and returns the sum of all energies. The
// spectrum has 128 floats per word.
double mark(std::span<const float> spectrum, const Thresholds& thresholds,
            std::span<std::uint64_t> at_least_low, std::span<std::uint64_t> at_least_high);

namespace reference {
double mark(std::span<const float> spectrum, const Thresholds& thresholds,
            std::span<std::uint64_t> at_least_low, std::span<std::uint64_t> at_least_high);
}  // namespace reference

// Calls `visit(pair)` for every set bit, in ascending order; pairs are numbered from words[0].
template <typename Visit>
void for_pairs(std::span<const std::uint64_t> words, Visit&& visit) {
  for (std::size_t word = 0; word < words.size(); ++word) {
    for (std::uint64_t left = words[word]; left != 0; left &= left - 1) {
      visit(word * kPairsPerWord + static_cast<std::size_t>(std::countr_zero(left)));
    }
  }
}

[[nodiscard]] inline std::size_t count_pairs(std::span<const std::uint64_t> words) {
  std::size_t count = 0;
  for (const std::uint64_t word : words) count += static_cast<std::size_t>(std::popcount(word));
  return count;
}

}  // namespace thinreduce::kernels
