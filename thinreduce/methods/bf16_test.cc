#include "thinreduce/methods/bf16.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/test_world.h"
#include "thinreduce/collective/checked.h"

namespace thinreduce {
namespace {

TEST(Bf16Method, MeanWithinTheRoundingsOfTheHops) {
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
        // One rounding of at most 2^-9 per rank, and float32's own in the last multiplication.
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

// 1 + (2^-8 + 2^-20) rounds up only if the second rank's value was not rounded first.
TEST(Bf16Method, OwnValueIsAddedUnrounded) {
  TestWorld ranks(2, "bf16", 2);
  const float odd = 0x1p-8f + 0x1p-20f;
  // Element 0 starts at rank 0 and is completed at rank 1; element 1 the other way round.
  const auto mean = ranks.mean({{1.0f, odd}, {odd, 1.0f}});
  EXPECT_EQ(mean, (std::vector<float>{0.50390625f, 0.50390625f}));
}

TEST(Bf16Method, SeveralSegmentsAChunk) {
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
  // 2(N-1)/N of the payload.
  EXPECT_EQ(ranks.transport(0).total_traffic().bytes_sent,
            kElements * 2 * 6 / 4 + 6 * kMessageChecksumBytes);
}

TEST(Bf16Method, EmptyBucket) {
  TestWorld ranks(3, "bf16", 0);
  EXPECT_TRUE(ranks.mean(PerRank(3)).empty());
}

}  // namespace
}  // namespace thinreduce
