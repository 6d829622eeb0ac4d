// The k units of largest energy of a spectrum, exactly, by one threshold over all of it, in one
// pass and without keeping the spectrum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/methods/fft/units.h"

namespace thinreduce::kernels {

// Units of energy zero are never selected, so there may be fewer than k. Of equal energies the
// lower index goes first.
//
// How: a sample of the spectrum tells between which two energies the k-th largest must lie, in all
// likelihood. What reaches the lower of the two is marked and collected part by part; what lies
// between them, a good part of k, is remembered, and the exact threshold is found among that at the
// end. If the sample has misled, the caller goes over the spectrum again with thresholds that
// collect everything.
//
//   selector.start(UnitSelector::guess(sample, share), bitmap);
//   for (part of the spectrum) selector.add(part);
//   if (!selector.can_find(k)) { selector.start(selector.everything(), bitmap); the same again }
//   result = selector.finish(k);
class UnitSelector {
 public:
  // For selecting `share` of the units. An empty sample makes thresholds that collect everything.
  [[nodiscard]] Thresholds guess(std::span<const float> sample, double share);
  [[nodiscard]] Thresholds everything() const { return {.scale = thresholds_.scale}; }

  // `bitmap` has a word for each 128 floats of the whole spectrum and is used until finish().
  void start(const Thresholds& thresholds, std::span<std::uint64_t> bitmap);
  // The next part, whole words.
  void add(std::span<const float> part);
  // Whether the thresholds held. Those of everything() always do.
  [[nodiscard]] bool can_find(std::size_t k) const;

  struct Result {
    std::span<const float> values;  // two a unit, in the order of the units; until the next start()
    double energy = 0;              // of all units, times scale^2; not finite if it overflows
    float scale = 1;
  };
  // Leaves only the selected units in the bitmap.
  [[nodiscard]] Result finish(std::size_t k);

 private:
  void make_room(std::size_t units);

  Thresholds thresholds_;
  std::span<std::uint64_t> bitmap_;
  std::size_t words_ = 0;      // that were added
  std::size_t collected_ = 0;  // units
  double energy_ = 0;          // of all units
  std::vector<float> values_;  // of those that were collected; longer than that, as all below
  // Those between the thresholds: which of all units, which of the collected ones, the energy.
  struct Between {
    std::uint32_t unit;
    std::uint32_t ordinal;
  };
  std::size_t betweens_ = 0;
  std::vector<Between> between_;
  std::vector<float> energies_;
  std::vector<std::uint8_t> stays_;  // of those that were collected
};

}  // namespace thinreduce::kernels
