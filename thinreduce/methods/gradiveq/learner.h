// How GradiVeQ learns: the slices that it samples, the loss that it measures on them, and the means
// and statistics that they move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/methods/gradiveq/layer.h"
#include "thinreduce/methods/gradiveq/sum.h"

namespace thinreduce {

class GradiveqLearner {
 public:
  // Larger magnitudes do not enter the mean.
  static constexpr float kMaxMean = SliceStatistics::kMaxLength;

  // `settings` must outlive the learner.
  GradiveqLearner(const GradiveqSettings& settings, const MethodSetup& setup)
      : settings_(settings), seed_(setup.seed), bucket_(setup.layout.id) {}

  // Draws the samples of a compressed step. With `running`, they are sent whole, and so are the
  // slices whose turn it is to deliver their residual.
  void choose_slices(std::span<GradiveqLayer> layers, std::uint64_t step) const;
  // Measures this rank's own loss on the samples and votes for new bases where it is large.
  void vote(GradiveqState& state, std::span<const float> values, float share);
  // Returns the fraction of this rank's energy that the bases lose.
  [[nodiscard]] static double loss(std::span<const GradiveqLayer> layers);

  // Take the samples of a compressed step into the statistics of the layers' owners, and into the
  // means of all ranks.
  void learn(GradiveqState& state, const GradiveqSum& sums);
  void move_means(GradiveqState& state, const GradiveqSum& sums);

  // An uncompressed step, where any slice can be a sample.
  struct Collection {
    std::uint64_t step = 0;
    std::uint64_t number = 0;  // of the step, from 0, among those that collect samples
    std::uint64_t steps = 1;   // that collect samples
  };
  // The same for an uncompressed step; `sums` are over the ranks.
  void learn(GradiveqState& state, std::span<const float> sums, const Collection& collection);
  void move_means(GradiveqState& state, std::span<const float> sums,
                  const Collection& collection) const;

 private:
  void draw(GradiveqLayer& layer, std::size_t slices, std::size_t count, std::uint64_t step) const;
  void measure_loss(GradiveqLayer& layer, std::size_t slice, std::span<const float> values,
                    std::span<const float> mean, float share);
  // How the samples of a layer are used.
  struct Taking {
    std::size_t evidence = 0;     // the part of GradiveqLayer::evidence that they enter
    std::span<const float> mean;  // of all elements of the bucket
    float weight = 1;             // of each sample
    bool tests = false;           // they test the basis
  };
  // Adds the samples of a layer to its evidence: sums over the ranks, without the mean before them.
  // sum_of(slice, sum) reads a sum; it returns false for a slice that is no sample after all.
  template <typename SumOf>
  void add_samples(GradiveqLayer& layer, const Taking& taking, const SumOf& sum_of);
  // Returns the rate at which an uncompressed step moves the mean.
  [[nodiscard]] float rate(const Collection& collection) const;

  const GradiveqSettings& settings_;
  const std::uint64_t seed_;
  const std::uint64_t bucket_;
  GradiveqScratch scratch_;     // for one slice
  std::vector<float> samples_;  // of one layer, not in its statistics yet
};

}  // namespace thinreduce
