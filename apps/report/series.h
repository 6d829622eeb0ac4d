// Curves of a chart: smoothed to show the trend, thinned to keep the page small.
#pragma once

#include <cstddef>
#include <vector>

namespace thinreduce::apps {

struct Point {
  double x = 0;
  double y = 0;
  bool operator==(const Point&) const = default;
};

// Returns the mean over a window centred on each point, which is shorter at both ends. Means skip
// NaN; a point whose whole window is NaN stays NaN.
[[nodiscard]] std::vector<double> smooth(const std::vector<double>& values, std::size_t window);

// Returns at most `limit` (at least 4) of the points, in order: the first, the last, and the lowest
// and highest of equal sections between them, so that no peak is lost.
[[nodiscard]] std::vector<Point> thin_out(const std::vector<Point>& points, std::size_t limit);

}  // namespace thinreduce::apps
