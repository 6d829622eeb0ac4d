// Synthetic gradients for benchmarks: close to normally distributed, with magnitudes that differ
// between rows, and with half of the energy common to all ranks, as gradients of one model on
// different batches have.
#pragma once

#include <cstdint>
#include <span>

namespace thinreduce::apps {

struct GradientKey {
  int rank = 0;
  std::uint64_t step = 0;
};

// Fills `values`; the same key gives the same values on every machine.
void synthetic_gradient(GradientKey key, std::span<float> values);

// Fills `values` with second moments that fit such gradients: per element, uniform from 0 to 128
// times the mean square of the gradient. About one element in a hundred of a gradient then
// stands out.
void synthetic_second_moment(std::span<float> values);

}  // namespace thinreduce::apps
