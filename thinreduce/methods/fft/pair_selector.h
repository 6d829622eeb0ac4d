// Selects exactly the k pairs of largest energy of a whole spectrum, in one pass and without
// storing the spectrum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/methods/fft/pairs.h"

namespace thinreduce::kernels {

// Pairs of energy zero are never selected, so there may be fewer than k. Among equal energies the
// lower index wins.
//
// Algorithm: a sample of the spectrum yields two thresholds between which the k-th largest energy
// almost certainly lies. Pairs that reach the lower threshold are marked and collected part by
// part; those between the two are also listed with their energies, and the exact k-th largest is
// found among them at the end. If the sample was misleading, the caller repeats the pass with
// thresholds that collect everything.
//
//   selector.start(selector.guess(sample, fraction), bitmap);
//   for (part of the spectrum) selector.add(part);
//   if (!selector.can_find(k)) { selector.start(selector.everything(), bitmap); the same again }
//   result = selector.finish(k);
class PairSelector {
 public:
  // Returns thresholds for selecting `fraction` of the pairs. With an empty sample they collect
  // everything.
  [[nodiscard]] Thresholds guess(std::span<const float> sample, double fraction);
  [[nodiscard]] Thresholds everything() const { return {.scale = thresholds_.scale}; }

  // Begins a pass. `bitmap` has one word per 128 floats of the spectrum and is used until finish().
  void start(const Thresholds& thresholds, std::span<std::uint64_t> bitmap);
  // Adds the next part of the spectrum, a multiple of 128 floats.
  void add(std::span<const float> part);
  // Returns whether the k-th largest energy lies between the thresholds; everything() always does.
  [[nodiscard]] bool can_find(std::size_t k) const;

  struct Result {
    std::span<const float> values;  // two per pair, in order; valid until the next start()
    double energy = 0;              // sum over all pairs, times scale^2; not finite on overflow
    float scale = 1;
  };
  // Clears all but the selected pairs in the bitmap.
  [[nodiscard]] Result finish(std::size_t k);

 private:
  void make_room(std::size_t pairs);

  Thresholds thresholds_;
  std::span<std::uint64_t> bitmap_;
  std::size_t words_ = 0;      // words added so far
  std::size_t collected_ = 0;  // pairs that reached the low threshold
  double energy_ = 0;          // sum over all pairs
  std::vector<float> values_;  // of the collected pairs; this and the vectors below have spare room
  // The collected pairs between the thresholds, and their energies.
  struct Between {
    std::uint32_t pair;     // index in the spectrum
    std::uint32_t ordinal;  // index among the collected
  };
  std::size_t betweens_ = 0;
  std::vector<Between> between_;
  std::vector<float> energies_;
  std::vector<std::uint8_t> stays_;  // per collected pair
};

}  // namespace thinreduce::kernels
