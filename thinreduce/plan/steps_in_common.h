// The median of the measurements of several steps, and whether all of them differ from it.
#pragma once

#include <algorithm>
#include <deque>

namespace thinreduce {

// `values` must not be empty.
[[nodiscard]] inline double median(std::deque<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Returns whether all of the values differ from the usual one by more than a fraction of it, in the
// same direction: noise does not last.
[[nodiscard]] inline bool all_differ(const std::deque<double>& values, double usual,
                                     double fraction) {
  const auto above = [&](double value) { return value > (1 + fraction) * usual; };
  const auto below = [&](double value) { return value < (1 - fraction) * usual; };
  return std::ranges::all_of(values, above) || std::ranges::all_of(values, below);
}

}  // namespace thinreduce
