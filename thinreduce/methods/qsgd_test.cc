#include "thinreduce/methods/qsgd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/test_data.h"
#include "tests/test_world.h"

namespace thinreduce::qsgd_test {
namespace {

// Every value is rounded to one of the two levels next to it.
TEST(Qsgd, RoundsToANeighbouringLevelOfTheNorm) {
  for (const int bits : {2, 3, 4, 8}) {
    const double levels = std::pow(2, bits - 1) - 1;
    for (const std::size_t elements : {1u, 100u, 5009u}) {
      TestWorld ranks(1, "qsgd:block=100,bits=" + std::to_string(bits), elements);
      const auto gradients = normal_gradients(1, elements, 1);
      const auto mean = ranks.mean(gradients);
      for (std::size_t begin = 0; begin < elements; begin += 100) {
        double norm = 0;
        const std::size_t end = std::min(begin + 100, elements);
        for (std::size_t i = begin; i < end; ++i) norm += std::pow(gradients[0][i], 2);
        const double step_size = std::sqrt(norm) / levels;
        for (std::size_t i = begin; i < end; ++i) {
          const double level = mean[i] / step_size;
          ASSERT_NEAR(level, std::round(level), 1e-3);
          ASSERT_LT(std::abs(mean[i] - gradients[0][i]), 1.001 * step_size);
        }
      }
    }
  }
}

TEST(TernGrad, HasThreeValuesAndClips) {
  TestWorld ranks(1, "terngrad", 10'000);
  auto gradients = normal_gradients(1, 10'000, 2);
  gradients[0][5] = 1000;
  const auto mean = ranks.mean(gradients);
  std::set<float> magnitudes;
  for (const float value : mean) magnitudes.insert(std::abs(value));
  EXPECT_EQ(magnitudes.size(), 2u);
  EXPECT_LT(*magnitudes.rbegin(), 30);
  TestWorld unclipped(1, "terngrad:clip=0", 10'000);
  EXPECT_NEAR(unclipped.mean(gradients)[5], 1000, 1);
}

TEST(Baselines, AllWorldsAndSizes) {
  for (const char* spec : {"qsgd", "qsgd:bits=8,entropy=off", "terngrad", "terngrad:entropy=off"}) {
    for (const int world : kWorlds) {
      for (const std::size_t elements : {0u, 1u, 63u, 2561u}) {
        TestWorld ranks(world, spec, elements);
        for (const float value : ranks.mean(normal_gradients(world, elements, 3))) {
          ASSERT_TRUE(std::isfinite(value));
        }
        EXPECT_EQ(
            ranks.mean(PerRank(static_cast<std::size_t>(world), std::vector<float>(elements))),
            std::vector<float>(elements));
      }
    }
  }
}

TEST(Baselines, SameBitsOnEveryTarget) {
  const auto before = kernels::active_target();
  for (const char* spec :
       {"qsgd", "terngrad", "dqsg", "dqsg:collective=gather", "dqsg:collective=root"}) {
    const auto gradients = normal_gradients(3, 3001, 4);
    kernels::use_target("reference");
    const auto expected = TestWorld(3, spec, 3001).mean(gradients);
    kernels::on_every_target(
        [&] { EXPECT_EQ(TestWorld(3, spec, 3001).mean(gradients), expected) << spec; });
  }
  kernels::use_target(before);
}

}  // namespace
}  // namespace thinreduce::qsgd_test
