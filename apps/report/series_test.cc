#include "apps/report/series.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "apps/report/run.h"

namespace thinreduce::apps::series_test {
namespace {

TEST(Smooth, KeepsConstantsLinesAndBounds) {
  for (const std::size_t size : {0U, 1U, 2U, 3U, 17U, 1000U}) {
    for (const std::size_t window : {0U, 1U, 2U, 5U, 100U, 5000U}) {
      std::vector<double> line(size);
      for (std::size_t i = 0; i < size; ++i) line[i] = static_cast<double>(i);
      const auto smoothed = smooth(line, window);
      ASSERT_EQ(smoothed.size(), size);
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_GE(smoothed[i], 0);
        ASSERT_LE(smoothed[i], static_cast<double>(size));
        if (i >= window / 2 && i + window / 2 < size) {
          ASSERT_NEAR(smoothed[i], line[i], 1e-9);
        }
      }
      const std::vector<double> constant(size, 3.5);
      ASSERT_EQ(smooth(constant, window), constant);
    }
  }
}

TEST(Smooth, StepsOverWhatIsNotANumber) {
  const auto smoothed = smooth({1, kMissing, 3, kMissing, kMissing, kMissing, INFINITY}, 2);
  EXPECT_EQ(smoothed[0], 1);
  EXPECT_EQ(smoothed[1], 2);
  EXPECT_EQ(smoothed[2], 3);
  EXPECT_TRUE(std::isnan(smoothed[4]));
  EXPECT_TRUE(std::isnan(smoothed[6]));
}

TEST(ThinOut, KeepsEndsOrderAndExtremes) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> values(-1, 1);
  for (const std::size_t size : {0U, 1U, 4U, 5U, 1000U, 1001U, 1009U, 50000U}) {
    for (const std::size_t limit : {0U, 4U, 5U, 10U, 1000U}) {
      std::vector<Point> points;
      for (std::size_t i = 0; i < size; ++i)
        points.push_back({static_cast<double>(i), values(random)});
      const auto thin = thin_out(points, limit);
      ASSERT_LE(thin.size(), std::max<std::size_t>(limit, 4));
      if (size <= limit) {
        ASSERT_EQ(thin, points);
      }
      if (size == 0) continue;
      const auto lower = [](const Point& a, const Point& b) { return a.y < b.y; };
      ASSERT_EQ(thin.front(), points.front());
      ASSERT_EQ(thin.back(), points.back());
      ASSERT_EQ(*std::min_element(thin.begin(), thin.end(), lower),
                *std::min_element(points.begin(), points.end(), lower));
      ASSERT_EQ(*std::max_element(thin.begin(), thin.end(), lower),
                *std::max_element(points.begin(), points.end(), lower));
      ASSERT_TRUE(std::is_sorted(thin.begin(), thin.end(),
                                 [](const Point& a, const Point& b) { return a.x < b.x; }));
    }
  }
}

TEST(ThinOut, KeepsGaps) {
  std::vector<Point> points(5000);
  for (std::size_t i = 0; i < points.size(); ++i) points[i] = {static_cast<double>(i), 1};
  points[2345].y = kMissing;
  const auto thin = thin_out(points, 100);
  EXPECT_EQ(std::count_if(thin.begin(), thin.end(), [](const Point& p) { return std::isnan(p.y); }),
            1);
}

}  // namespace
}  // namespace thinreduce::apps::series_test
