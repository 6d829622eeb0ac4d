// The median of a few numbers.
#pragma once

#include <algorithm>
#include <deque>

namespace thinreduce {

// `values` must not be empty.
[[nodiscard]] inline double median(std::deque<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace thinreduce
