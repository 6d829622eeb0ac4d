// How GradiVeQ learns: the slices that it samples, the loss that it measures on them, and the means
// and statistics that they move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/methods/gradiveq/layer.h"
#include "thinreduce/methods/gradiveq/ring.h"

namespace thinreduce {

class GradiveqLearner {
 public:
  // Larger magnitudes do not enter the mean.
  static constexpr float kMaxMean = SliceStatistics::kMaxLength;

  // `settings` and `state` must outlive the learner.
  GradiveqLearner(const GradiveqSettings& settings, const MethodSetup& setup, GradiveqState& state);

  // Draws the samples of a compressed step. With `running`, they are sent whole, and so are the
  // slices whose turn it is to deliver their residual.
  void choose_slices(std::uint64_t step);
  // Measures this rank's own loss on the samples and votes for new bases where it is large.
  void vote(std::span<const float> values, float share);
  // Returns the fraction of this rank's energy that the bases lose.
  [[nodiscard]] double loss() const;

  // The samples of a compressed step enter the statistics of the layers' owners, and the means at
  // all ranks. `values` are the means over the ranks.
  void learn(std::span<const float> values, const GradiveqRing& ring, float world);
  void move_means(std::span<const float> values, const GradiveqRing& ring, float world);

  // An uncompressed step, where any slice can be a sample.
  struct Collection {
    std::uint64_t step = 0;
    std::uint64_t number = 0;  // of the step, from 0, among those that collect samples
    std::uint64_t steps = 1;   // that collect samples
  };
  // The same for an uncompressed step; `sums` are over the ranks.
  void collect(std::span<const float> sums, const Collection& collection);
  void move_means(std::span<const float> sums, const Collection& collection);

 private:
  void draw(std::size_t layer, std::size_t slices, std::size_t count, std::uint64_t step);
  void measure_loss(GradiveqLayer& layer, std::size_t slice, std::span<const float> values,
                    float share);
  // Appends a sample of one of the layer's candidates to samples_: the sum over the ranks, without
  // the mean before it.
  void take(GradiveqLayer& layer, std::size_t candidate, std::span<const float> sum,
            std::span<const float> mean, float weight);
  // Calls visit(place, sum over the ranks, mean before it) for the samples of a layer.
  template <typename Visit>
  void for_samples(std::size_t layer, std::span<const float> values, const GradiveqRing& ring,
                   float world, Visit visit);

  // Returns the rate at which an uncompressed step moves the mean.
  [[nodiscard]] float rate(const Collection& collection) const;

  const GradiveqSettings& settings_;
  const std::uint64_t seed_;
  const std::uint64_t bucket_;
  GradiveqState& state_;
  std::vector<float> slice_, mean_, projection_;  // scratch for one slice
  std::vector<float> samples_;                    // of one layer, not in its statistics yet
};

}  // namespace thinreduce
