#include "thinreduce/wire/short_seconds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace thinreduce::short_seconds_test {
namespace {

TEST(ShortSeconds, EveryCodeIsATimeAndReturnsToItself) {
  float last = -1;
  for (std::uint32_t code = 0; code <= 0xFFFF; ++code) {
    const float seconds = decode_seconds(static_cast<std::uint16_t>(code));
    ASSERT_TRUE(std::isfinite(seconds));
    ASSERT_GT(seconds, last) << code;
    ASSERT_EQ(encode_seconds(seconds), code);
    last = seconds;
  }
}

TEST(ShortSeconds, TimesAreOffByAtMostOnePartIn2048) {
  for (float seconds = 1e-9F; seconds < 1e6F; seconds *= 1.0137F) {
    EXPECT_NEAR(decode_seconds(encode_seconds(seconds)) / seconds, 1, 1.0 / 2048) << seconds;
  }
}

TEST(ShortSeconds, WhatIsNoTimeHasACodeToo) {
  EXPECT_EQ(encode_seconds(0), 0);
  EXPECT_EQ(encode_seconds(-1), 0);
  EXPECT_EQ(encode_seconds(std::numeric_limits<float>::quiet_NaN()), 0);
  EXPECT_EQ(encode_seconds(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(encode_seconds(std::numeric_limits<float>::infinity()), 0xFFFF);
}

}  // namespace
}  // namespace thinreduce::short_seconds_test
