// Curves for a chart: smoothed so that the trend shows, thinned so that the page stays small.
#pragma once

#include <cstddef>
#include <vector>

namespace thinreduce::apps {

struct Point {
  double x = 0;
  double y = 0;
  bool operator==(const Point&) const = default;
};

// The mean over a window around each point, half of it before and half after; at both ends, what is
// there of it. NaN values are left out of the means; a point whose whole window is NaN stays NaN.
[[nodiscard]] std::vector<double> smooth(const std::vector<double>& values, std::size_t window);

// At most `limit` (at least 4) of the points, in order: the first, the last, and the lowest and the
// highest of equal runs between them, so that no peak is lost.
[[nodiscard]] std::vector<Point> thin_out(const std::vector<Point>& points, std::size_t limit);

}  // namespace thinreduce::apps
