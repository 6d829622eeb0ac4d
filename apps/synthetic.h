// Gradients for benchmarks: bell-shaped, with magnitudes that differ from row to row and half of
// their energy shared by all ranks, as real gradients of one model on different batches.
#pragma once

#include <cstdint>
#include <span>

namespace thinreduce::apps {

struct GradientKey {
  int rank = 0;
  std::uint64_t step = 0;
};

// The same key gives the same values everywhere.
void synthetic_gradient(GradientKey key, std::span<float> values);

// A second moment that fits such gradients: per element, up to 128 times the mean square of the
// gradient, evenly spread. So a step's gradient stands out against it at one element in a hundred.
void synthetic_second_moment(std::span<float> values);

}  // namespace thinreduce::apps
