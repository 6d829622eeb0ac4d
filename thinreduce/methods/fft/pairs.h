// Pairs of coefficients, which are kept or dropped together, and lists and bitmaps of the kept
// ones.
//
// A spectrum of 16 blocks side by side (block_transform.h) has rows of 16 floats; two rows are 16
// pairs. Pair p is row 2*(p/16) and row 2*(p/16)+1 at column p%16; in a bitmap, bit p%64 of word
// p/64 is set if it is kept. Its energy is the sum of the two squares.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace thinreduce::kernels {

// Floats per row.
inline constexpr std::size_t kColumns = 16;
// A word of a bitmap covers 4 double rows, 128 floats.
inline constexpr std::size_t kPairsPerWord = 64;

// Returns the offset of a pair's first coefficient; the second follows kColumns floats later.
[[nodiscard]] inline std::size_t pair_offset(std::size_t pair) {
  return pair + pair / kColumns * kColumns;
}

[[nodiscard]] inline float pair_energy(std::span<const float> spectrum, std::size_t pair,
                                       float scale) {
  const std::size_t at = pair_offset(pair);
  const float re = spectrum[at] * scale;
  const float im = spectrum[at + kColumns] * scale;
  return re * re + im * im;
}

// Two thresholds for pair_energy, as bits of floats; 1 <= low <= high. A NaN of either sign is
// above every threshold, so a spectrum that overflowed is always noticed.
struct Thresholds {
  float scale = 1;
  std::uint32_t low = 1;
  std::uint32_t high = 0x7fffffff;
};

// Room for the pairs that reach the low threshold, in order. Whole vectors are written, so there
// must be room for all pairs of the spectrum and kPairSlack more.
inline constexpr std::size_t kPairSlack = 16;
struct PairRoom {
  std::span<std::uint16_t> positions;  // index in the spectrum
  std::span<float> values;             // two per pair
  std::span<float> energies;           // as pair_energy
  std::span<float> between;            // energies below the high threshold
};
struct CollectedPairs {
  std::size_t pairs = 0;
  std::size_t between = 0;
  double energy = 0;  // sum over all pairs of the spectrum
};

// Collects the pairs that reach the low threshold. The spectrum must be whole double rows, at most
// 2^16 pairs.
CollectedPairs collect_pairs(std::span<const float> spectrum, const Thresholds& thresholds,
                             const PairRoom& room);

namespace reference {
CollectedPairs collect_pairs(std::span<const float> spectrum, const Thresholds& thresholds,
                             const PairRoom& room);
}  // namespace reference

// The places of a spectrum's selected pairs, in order. The spectrum is cut into runs.
struct PairPlaces {
  std::vector<std::uint16_t> positions;  // per pair, in its run; with spare room
  std::vector<std::size_t> firsts;       // per run, and at the end: index of its first pair
};

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
