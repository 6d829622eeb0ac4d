// How GradiVeQ learns: the slices that it samples, the loss that it measures on them, and the means
// and statistics that they move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/methods/gradiveq/sum.h"

namespace thinreduce {

class GradiveqLearner {
 public:
  // Larger magnitudes do not enter the mean.
  static constexpr float kMaxMean = SliceStatistics::kMaxLength;

  // `settings` and `state` must outlive the learner.
  GradiveqLearner(const GradiveqSettings& settings, GradiveqState& state, const MethodSetup& setup)
      : settings_(settings), state_(state), seed_(setup.seed), bucket_(setup.layout.id) {
    // The means move after the last exchange, where nothing may fail.
    for (const GradiveqLayer& layer : state.layers) {
      for (const Slicing& slicing : layer.candidates) scratch_.reserve(slicing.slice());
    }
  }

  // Draws the samples of a compressed step. With `running`, they are sent whole, and so are the
  // slices whose turn it is to deliver their residual.
  void choose_slices(std::uint64_t step);
  // Measures this rank's own loss on the samples and votes for new bases where it is large.
  void vote(std::span<const float> values, float share);
  // Returns the fraction of this rank's energy that the bases lose.
  [[nodiscard]] double loss() const;

  // Take the samples of a compressed step into the statistics of the layers' keepers, and into the
  // means of all ranks.
  void learn(const GradiveqSum& sums);
  void move_means(const GradiveqSum& sums);

  // An uncompressed step, where any slice can be a sample.
  struct Collection {
    std::uint64_t step = 0;
    std::uint64_t number = 0;  // of the step, from 0, among those that collect samples
    std::uint64_t steps = 1;   // that collect samples
  };
  // The same for an uncompressed step; `sums` are over the ranks.
  void learn(std::span<const float> sums, const Collection& collection);
  void move_means(std::span<const float> sums, const Collection& collection) {
    move_mean(state_.mean, sums, rate(collection));
  }

 private:
  void draw(GradiveqLayer& layer, std::size_t slices, std::size_t count, std::uint64_t step) const;
  void measure_loss(GradiveqLayer& layer, std::size_t slice, std::span<const float> values,
                    float share);
  // Sets samples_ to the samples of a layer for evidence[index], cut as `slicing`: sums over the
  // ranks, without the mean before them. sum_of(slice, sum) reads a sum; it returns false for a
  // slice that is no sample after all.
  template <typename SumOf>
  void collect(GradiveqLayer& layer, std::size_t index, const Slicing& slicing, float weight,
               const SumOf& sum_of);
  static void move_mean(std::span<float> mean, std::span<const float> sum, float rate);
  // Returns the rate at which an uncompressed step moves the mean.
  [[nodiscard]] float rate(const Collection& collection) const;

  const GradiveqSettings& settings_;
  GradiveqState& state_;
  const std::uint64_t seed_;
  const std::uint64_t bucket_;
  GradiveqScratch scratch_;     // for one slice
  std::vector<float> samples_;  // of one layer, not in its statistics yet
};

}  // namespace thinreduce
