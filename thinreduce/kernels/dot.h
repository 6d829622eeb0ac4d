// The scalar product of two runs of floats, for the few places where it takes no time.
#pragma once

#include <cstddef>
#include <span>

namespace thinreduce::kernels {

// Returns <a, b>, added up in double and in order, so that the bits are the same on every CPU.
[[nodiscard]] inline double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

}  // namespace thinreduce::kernels
