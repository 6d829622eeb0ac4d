#include "apps/report/series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace thinreduce::apps {

std::vector<double> smooth(const std::vector<double>& values, std::size_t window) {
  const std::size_t size = values.size();
  // Prefix sums, so that the cost does not depend on the window.
  std::vector<double> sums(size + 1);
  std::vector<std::size_t> counts(size + 1);
  for (std::size_t i = 0; i < size; ++i) {
    const bool there = std::isfinite(values[i]);
    sums[i + 1] = sums[i] + (there ? values[i] : 0);
    counts[i + 1] = counts[i] + (there ? 1 : 0);
  }
  std::vector<double> means(size, std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t begin = i - std::min(window / 2, i);
    const std::size_t end = std::min(i + window / 2 + 1, size);
    if (const auto count = counts[end] - counts[begin]; count > 0) {
      means[i] = (sums[end] - sums[begin]) / static_cast<double>(count);
    }
  }
  return means;
}

std::vector<Point> thin_out(const std::vector<Point>& points, std::size_t limit) {
  limit = std::max<std::size_t>(limit, 4);
  if (points.size() <= limit) return points;
  const std::size_t inner = points.size() - 2;
  const std::size_t runs = (limit - 2) / 2;
  std::vector<Point> kept{points.front()};
  for (std::size_t run = 0; run < runs; ++run) {
    const auto begin = points.begin() + 1 + static_cast<std::ptrdiff_t>(run * inner / runs);
    const auto end = points.begin() + 1 + static_cast<std::ptrdiff_t>((run + 1) * inner / runs);
    // A section with a NaN becomes a gap, since NaN is neither lowest nor highest.
    const auto gap = std::find_if(begin, end, [](const Point& p) { return std::isnan(p.y); });
    if (gap != end) {
      kept.push_back(*gap);
      continue;
    }
    auto [low, high] =
        std::minmax_element(begin, end, [](const Point& a, const Point& b) { return a.y < b.y; });
    if (high < low) std::swap(low, high);
    kept.push_back(*low);
    if (high != low) kept.push_back(*high);
  }
  kept.push_back(points.back());
  return kept;
}

}  // namespace thinreduce::apps
