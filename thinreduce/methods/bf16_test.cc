#include "thinreduce/methods/bf16.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/ranks.h"
#include "tests/test_world.h"

namespace thinreduce::bf16_test {
namespace {

TEST(Bf16Method, MeanWithinTheRoundingsOfPartsAndSum) {
  for (const int world : kWorlds) {
    for (const auto elements : kBucketSizes) {
      SCOPED_TRACE(testing::Message() << world << " ranks, " << elements << " elements");
      TestWorld ranks(world, "bf16", elements);
      const auto gradients = normal_gradients(world, elements, 1);
      const auto mean = ranks.mean(gradients);
      for (std::size_t i = 0; i < elements; ++i) {
        double sum = 0, largest = 0;
        for (const auto& gradient : gradients) {
          sum += gradient[i];
          largest += std::abs(gradient[i]);  // bounds every partial sum
        }
        // One rounding of at most 2^-9 per part and one of the sum, and float32's own.
        ASSERT_NEAR(mean[i], sum / world, largest * 0x1p-8 + 1e-30) << i;
      }
    }
  }
}

// Sums of up to 8 bits are bf16 numbers, so nothing is rounded and N = 2, 4 divide exactly.
TEST(Bf16Method, SmallWholeNumbersAreExact) {
  for (const int world : {1, 2, 4}) {
    TestWorld ranks(world, "bf16", 1009);
    PerRank gradients(static_cast<std::size_t>(world), std::vector<float>(1009));
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      for (std::size_t i = 0; i < 1009; ++i) {
        gradients[rank][i] = static_cast<float>((i * 7 + rank * 13) % 63) - 31;
      }
    }
    const auto sum = exact_sum(gradients);
    for (int step = 0; step < 3; ++step) {
      const auto mean = ranks.mean(gradients);
      for (std::size_t i = 0; i < 1009; ++i) ASSERT_EQ(mean[i], sum[i] / world);
    }
  }
}

// 1 + (2^-8 + 2^-20) rounds up only if the owner's value was not rounded first.
TEST(Bf16Method, OwnValueIsAddedUnrounded) {
  TestWorld ranks(2, "bf16", 2);
  const float odd = 0x1p-8f + 0x1p-20f;
  const auto mean = ranks.mean({{odd, 1.0f}, {1.0f, odd}});
  EXPECT_EQ(mean, (std::vector<float>{0.50390625f, 0.50390625f}));
}

// Beside a sum of 256, one more 1 is half a place of bf16: sums that are rounded at every hop stop
// there.
TEST(Bf16Method, ManyRanksDoNotStall) {
  for (const int world : {300, 512}) {
    TestWorld ranks(world, "bf16", 5);
    const auto mean = ranks.mean(PerRank(static_cast<std::size_t>(world), std::vector(5, 1.0f)));
    for (const float value : mean) EXPECT_NEAR(value, 1, 0x1p-9) << world << " ranks";
  }
}

TEST(Bf16Method, SeveralPiecesARange) {
  constexpr std::size_t kElements = 1200007;
  TestWorld ranks(2, "bf16", kElements);
  const auto gradients = normal_gradients(2, kElements, 3);
  const auto mean = ranks.mean(gradients);
  const auto sum = exact_sum(gradients);
  for (std::size_t i = 0; i < kElements; ++i) {
    const double largest = std::abs(gradients[0][i]) + std::abs(gradients[1][i]);
    ASSERT_NEAR(mean[i], sum[i] / 2, largest * 0x1p-8) << i;
  }
}

TEST(Bf16Method, HalfTheBytes) {
  constexpr std::size_t kElements = 4000;
  TestWorld ranks(4, "bf16", kElements);
  (void)ranks.mean(normal_gradients(4, kElements, 2));
  // 2(N-1)/N of the payload, and 80 bytes for each of 6 frames.
  EXPECT_EQ(ranks.transport(0).total_traffic().bytes_sent, kElements * 2 * 6 / 4 + 6 * 80);
}

// Finite gradients whose sum no bf16 number can hold: the same error on all ranks.
TEST(Bf16Method, ASumThatOverflowsIsAnError) {
  for (const float huge : {3e38f, 0x1.ffp127f}) {
    TestWorld ranks(2, "bf16", 9);
    PerRank gradients(2, std::vector<float>(9, 1.0f));
    gradients[0][7] = gradients[1][7] = huge;
    (void)ranks.step(gradients);
    for (const auto& thrown : ranks.thrown) {
      const auto text = error_text(thrown, ErrorCode::bad_frame);
      EXPECT_NE(text.find("element 7 is inf after the sum over 2 ranks"), std::string::npos)
          << text;
    }
  }
}

TEST(Bf16Method, EmptyBucket) {
  TestWorld ranks(3, "bf16", 0);
  EXPECT_TRUE(ranks.mean(PerRank(3)).empty());
}

}  // namespace
}  // namespace thinreduce::bf16_test
