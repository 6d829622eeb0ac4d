// Selects exactly the k pairs of largest energy of a whole spectrum, in one pass and without
// storing the spectrum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/collective/workers.h"
#include "thinreduce/kernels/select.h"
#include "thinreduce/methods/fft/pairs.h"

namespace thinreduce {

// Pairs of energy zero are never selected, so there may be fewer than k. Among equal energies the
// lower index wins.
//
// Algorithm: a sample of the spectrum yields two thresholds between which the k-th largest energy
// almost certainly lies. Pairs that reach the lower threshold are collected part by part; the
// energies between the two are also listed, and the exact k-th largest is found among them at the
// end. If the sample was misleading, the caller repeats the pass with thresholds that collect
// everything.
//
//   selector.start(selector.guess(sample, fraction));
//   for (part of the spectrum) selector.add(part);
//   if (!selector.can_find(k)) { selector.start(selector.everything()); the same again }
//   result = selector.finish(k, places);
//
// A long spectrum is cut into stretches: each is added in order, several at a time.
class PairSelector {
 public:
  // Words per run: their spectrum, 16 KiB, stays in the L1 cache.
  static constexpr std::size_t kRunWords = 32;

  // Returns thresholds for selecting `fraction` of the pairs. With an empty sample they collect
  // everything.
  [[nodiscard]] static kernels::Thresholds guess(std::span<const float> sample, double fraction);
  [[nodiscard]] kernels::Thresholds everything() const { return {.scale = thresholds_.scale}; }

  // Begins a pass over `stretches` stretches.
  void start(const kernels::Thresholds& thresholds, std::size_t stretches = 1);
  // Adds the next part of a stretch, whole words, as runs of kRunWords; the last may be shorter.
  // May be called for several stretches at a time.
  void add(std::span<const float> part, std::size_t stretch = 0);
  // Adds a part of `words` words that are zero.
  void add_zeros(std::size_t words, std::size_t stretch = 0);
  // Returns whether the k-th largest energy lies between the thresholds; everything() always does.
  [[nodiscard]] bool can_find(std::size_t k) const;

  struct Result {
    std::span<const float> values;  // two per pair, in order; valid until the next finish()
    double energy = 0;              // sum over all pairs, times scale^2; not finite on overflow
    float scale = 1;
  };
  // Writes the places of the selected pairs.
  [[nodiscard]] Result finish(std::size_t k, kernels::PairPlaces& places, Workers workers = {});

 private:
  // The vectors per pair have spare room.
  struct Stretch {
    std::vector<double> run_sums;         // sums of energy, which are added in order
    std::vector<std::size_t> run_counts;  // collected pairs per run
    std::size_t collected = 0;            // pairs that reached the low threshold
    std::vector<std::uint16_t> positions;
    std::vector<float> values;  // two per collected pair
    std::vector<float> energies;
    std::size_t betweens = 0;
    std::vector<float> between;  // energies between the thresholds
    std::size_t ties = 0;        // pairs of the smallest selected energy, those to be selected
    std::size_t kept = 0;        // pairs to be selected
    std::size_t first = 0;       // index of the first of them among all selected pairs
    std::size_t first_run = 0;   // index of its first run

    void clear();
    [[nodiscard]] kernels::PairRoom room_for(std::size_t pairs);
  };

  [[nodiscard]] kernels::KthLargest last_between(std::size_t wanted, Workers workers) const;
  static void count_kept(Stretch& stretch, std::uint32_t last);
  void keep(const Stretch& stretch, kernels::KthLargest last, kernels::PairPlaces& places);

  kernels::Thresholds thresholds_;
  std::vector<Stretch> stretches_;
  std::vector<float> values_;  // of the selected pairs; with spare room
};

}  // namespace thinreduce
