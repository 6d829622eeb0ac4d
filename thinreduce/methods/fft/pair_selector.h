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
//
// A long spectrum is cut into stretches: each is added in order, several at a time.
class PairSelector {
 public:
  // Returns thresholds for selecting `fraction` of the pairs. With an empty sample they collect
  // everything.
  [[nodiscard]] static Thresholds guess(std::span<const float> sample, double fraction);
  [[nodiscard]] Thresholds everything() const { return {.scale = thresholds_.scale}; }

  // Begins a pass. `bitmap` has one word per 128 floats of the spectrum and is used until finish().
  // `first_words` has the first word of each stretch; empty: there is one.
  void start(const Thresholds& thresholds, std::span<std::uint64_t> bitmap,
             std::span<const std::size_t> first_words = {});
  // Adds the next part of a stretch, a multiple of 128 floats. May be called for several stretches
  // at a time.
  void add(std::span<const float> part, std::size_t stretch = 0);
  // Returns whether the k-th largest energy lies between the thresholds; everything() always does.
  [[nodiscard]] bool can_find(std::size_t k) const;

  struct Result {
    std::span<const float> values;  // two per pair, in order; valid until the next finish()
    double energy = 0;              // sum over all pairs, times scale^2; not finite on overflow
    float scale = 1;
  };
  // Clears all but the selected pairs in the bitmap.
  [[nodiscard]] Result finish(std::size_t k, Workers workers = {});

 private:
  // A collected pair between the thresholds.
  struct Between {
    std::uint32_t pair;     // index in the spectrum
    std::uint32_t ordinal;  // index among the collected of its stretch
  };
  // The vectors of floats and pairs have spare room.
  struct Stretch {
    std::size_t words = 0;         // up to which it was added
    std::size_t collected = 0;     // pairs that reached the low threshold
    std::vector<double> run_sums;  // sums of energy, which are added in order
    std::vector<float> values;     // of the collected pairs
    std::size_t betweens = 0;
    std::vector<Between> between;
    std::vector<float> energies;      // the same
    std::vector<std::uint8_t> stays;  // per collected pair
    std::size_t ties = 0;             // pairs of the smallest selected energy, those to be selected
    std::size_t kept = 0;             // pairs to be selected
    std::size_t begin = 0;            // the first of them among the selected

    void make_room(std::size_t pairs);
  };

  [[nodiscard]] KthLargest last_between(std::size_t wanted, Workers workers) const;
  static void count_kept(Stretch& stretch, std::uint32_t last);
  void keep(Stretch& stretch, KthLargest last);

  Thresholds thresholds_;
  std::span<std::uint64_t> bitmap_;
  std::vector<Stretch> stretches_;
  std::vector<std::size_t> first_words_;  // per stretch, and the end
  std::vector<float> values_;             // of the selected pairs; with spare room
};

}  // namespace thinreduce::kernels
