// The k units of largest energy of a spectrum, exactly, by one threshold over all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/kernels/units.h"

namespace thinreduce::kernels {

// Units of energy zero are never selected, so there may be fewer than k. Of equal energies the
// lower index goes first.
//
// How: a sample of the units tells between which two energies the k-th largest must lie, in all
// likelihood. One pass over the spectrum marks what is above the higher, and collects what is
// between: a few per cent, among which the exact threshold is found. If the sample has misled, a
// second pass collects everything.
class UnitSelector {
 public:
  struct Result {
    std::size_t units = 0;  // that were selected
    double energy = 0;      // of all units, times scale^2; not finite if it overflows
    float scale = 1;        // a power of two near 1 / the largest coefficient
  };
  // Replaces `bitmap`, one bit a unit: spectrum.size() / 128 words.
  Result select(std::span<const float> spectrum, std::size_t k, std::span<std::uint64_t> bitmap);

 private:
  [[nodiscard]] Thresholds guess(std::span<const float> spectrum, std::size_t k);
  void pass(std::span<const float> spectrum, const Thresholds& thresholds,
            std::span<std::uint64_t> bitmap);

  double energy_ = 0;                   // of all units
  std::size_t above_ = 0;               // how many they are
  std::vector<std::uint32_t> indices_;  // of those between
  std::vector<float> energies_;         // of those between
  std::vector<float> sample_;
};

}  // namespace thinreduce::kernels
