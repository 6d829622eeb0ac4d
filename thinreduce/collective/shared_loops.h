// Loops of kernels/, shared by the threads of a rank.
#pragma once

#include <algorithm>
#include <span>

#include "thinreduce/collective/workers.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/kernels/select.h"

namespace thinreduce {

// Calls work(first, count) for runs of `count` floats that a thread can do by itself.
template <typename Work>
void for_floats(Workers workers, std::size_t count, const Work& work) {
  workers.for_runs(
      count, kFloatsPerBlock,
      [&](std::size_t first, std::size_t run, std::size_t /*thread*/) { work(first, run); });
}

inline void add(Workers workers, std::span<float> sum, std::span<const float> in) {
  for_floats(workers, sum.size(), [&](std::size_t first, std::size_t count) {
    kernels::add(sum.subspan(first, count), in.subspan(first, count));
  });
}

inline void scale(Workers workers, std::span<float> values, float factor) {
  for_floats(workers, values.size(), [&](std::size_t first, std::size_t count) {
    kernels::scale(values.subspan(first, count), factor);
  });
}

inline void fill(Workers workers, std::span<float> values, float value) {
  for_floats(workers, values.size(), [&](std::size_t first, std::size_t count) {
    std::ranges::fill(values.subspan(first, count), value);
  });
}

// Returns the index of the first NaN or Inf; values.size() if there is none.
[[nodiscard]] std::size_t first_nonfinite(Workers workers, std::span<const float> values);
// Returns the square root of the sum of squares, at most the largest float.
[[nodiscard]] float norm(Workers workers, std::span<const float> values);
[[nodiscard]] float largest_magnitude(Workers workers, std::span<const float> values);

// Returns the k-th largest magnitude of all parts together.
[[nodiscard]] kernels::KthLargest kth_largest(Workers workers,
                                              std::span<const std::span<const float>> parts,
                                              std::size_t k);

}  // namespace thinreduce
