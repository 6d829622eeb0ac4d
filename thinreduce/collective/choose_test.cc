#include "thinreduce/collective/choose.h"

#include <gtest/gtest.h>

namespace thinreduce::choose_test {
namespace {

constexpr std::size_t kMega = 1'000'000;

TEST(Choose, BulkGoesRoundTheRingOfAFastNetwork) {
  const Link fast{.bytes_per_second = 125e6, .latency = Seconds{20e-6}};
  EXPECT_EQ(choose_sum(4, 16 * kMega, fast, true), SumBy::ring);
  EXPECT_EQ(choose_sum(2, 16 * kMega, fast, true), SumBy::ring);
}

TEST(Choose, LatencyMakesOwnersFasterThanTheRing) {
  const Link far{.bytes_per_second = 125e6, .latency = Seconds{5e-3}};
  for (const int world : {4, 16, 64}) {
    EXPECT_EQ(choose_sum(world, 16 * kMega, far, true), SumBy::owner) << world;
  }
}

TEST(Choose, FewBytesGoDirectly) {
  const Link far{.bytes_per_second = 125e6, .latency = Seconds{5e-3}};
  EXPECT_EQ(choose_sum(16, 10'000, far, true), SumBy::direct);
  EXPECT_EQ(choose_sum(16, 10'000, far, false), SumBy::owner);
  // N - 1 copies of as many bytes take longer than the latency that they save.
  EXPECT_EQ(choose_sum(16, 200'000, far, true), SumBy::owner);
  EXPECT_EQ(choose_sum(4, 200'000, far, true), SumBy::direct);
  // However slow the network is, a direct sum holds a copy per rank.
  const Link farther{.bytes_per_second = 125e6, .latency = Seconds{1}};
  EXPECT_EQ(choose_sum(4, kMaxDirectBytes, farther, true), SumBy::direct);
  EXPECT_EQ(choose_sum(4, kMaxDirectBytes + 1, farther, true), SumBy::owner);
}

TEST(Choose, TheChosenOneIsPredictedToBeTheFastest) {
  for (const double rate : {0.0, 1e6, 1e8, 1e10}) {
    for (const double latency : {0.0, 1e-5, 1e-3, 0.1}) {
      const Link link{.bytes_per_second = rate, .latency = Seconds{latency}};
      for (const int world : {2, 3, 16, 256}) {
        for (const std::size_t bytes : {4u, 4096u, 300'000u}) {
          const double chosen =
              predict_seconds(choose_sum(world, bytes, link, true), world, bytes, link);
          for (const SumBy by : {SumBy::ring, SumBy::owner, SumBy::direct}) {
            EXPECT_LE(chosen, predict_seconds(by, world, bytes, link));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace thinreduce::choose_test
