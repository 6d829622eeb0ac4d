#include "thinreduce/methods/sketch/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "thinreduce/error.h"

namespace thinreduce::kernels::half_test {
namespace {

// Returns the value of a half by its definition.
double defined(std::uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24)
                           : exponent == 31
                               ? (mantissa == 0 ? std::numeric_limits<double>::infinity()
                                                : std::numeric_limits<double>::quiet_NaN())
                               : std::ldexp(1024 + mantissa, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Half, AllHalfsMeanWhatTheyShouldAndComeBack) {
  for (unsigned i = 0; i < 65536; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    const float value = from_half(half);
    if (std::isnan(defined(half))) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(from_half(to_half(value))));
    } else {
      ASSERT_EQ(static_cast<double>(value), defined(half)) << i;
      ASSERT_EQ(to_half(value), half) << i;
    }
  }
}

// Rounds to the nearer neighbour, ties to even.
TEST(Half, RoundsToNearestEven) {
  for (unsigned i = 0; i < 0x7bff; ++i) {
    const auto low = static_cast<std::uint16_t>(i);
    const auto high = static_cast<std::uint16_t>(i + 1);
    const auto middle = static_cast<float>((defined(low) + defined(high)) / 2);
    ASSERT_EQ(to_half(middle), i % 2 == 0 ? low : high) << i;
    ASSERT_EQ(to_half(std::nextafter(middle, 0.0f)), low) << i;
    ASSERT_EQ(to_half(std::nextafter(middle, 1e30f)), high) << i;
    ASSERT_EQ(to_half(-middle), (i % 2 == 0 ? low : high) | 0x8000) << i;
  }
  EXPECT_EQ(to_half(65519.996f), 0x7bff);
  EXPECT_EQ(to_half(65520.0f), 0x7c00);
  EXPECT_EQ(to_half(1e38f), 0x7c00);
  EXPECT_EQ(to_half(-std::numeric_limits<float>::infinity()), 0xfc00);
}

TEST(Half, Spans) {
  const std::vector<float> values{1.0f, -2.5f, 1000.0f};
  std::vector<std::uint16_t> halves(3);
  std::vector<float> back(3);
  to_half(values, 0.5f, halves);
  from_half(halves, 2.0f, back);
  EXPECT_EQ(back, values);
  EXPECT_THROW(to_half(values, 1, std::span(halves).first(2)), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::kernels::half_test
