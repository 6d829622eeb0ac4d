// How GradiVeQ learns: the slices that it samples, the loss that it measures on them, and the means
// and statistics that they move.
#pragma once

#include <cstdint>
#include <span>

#include "thinreduce/methods/gradiveq/sum.h"

namespace thinreduce {

// Larger magnitudes do not enter the mean.
inline constexpr float kMaxMean = SliceStatistics::kMaxLength;

// Draws the samples of a compressed step. With `running`, they are sent whole, and so are the
// slices whose turn it is to deliver their residual.
void choose_slices(GradiveqState& state, std::uint64_t step);
// Measures this rank's own loss on the samples, from which its votes follow. `share` is 1 / N.
void measure_loss(GradiveqState& state, std::span<const float> values, float share);
// Returns the fraction of this rank's energy that the bases lose.
[[nodiscard]] double lost_fraction(const GradiveqState& state);

// Take the samples of a compressed step into the statistics of the layers' keepers, and into the
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
void move_means(GradiveqState& state, std::span<const float> sums, const Collection& collection);

}  // namespace thinreduce
