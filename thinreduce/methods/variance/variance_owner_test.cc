// collective=owner of variance. The laws of all methods hold for it too: laws_test.cc,
// hostile_owner_test.cc.
#include "thinreduce/methods/variance/variance_owner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/test_world.h"

namespace thinreduce::variance_owner_test {
namespace {

// A single rank owns everything and answers with all of its unambiguous sums, like a gather.
TEST(VarianceOwner, OneRankEqualsAGather) {
  for (const std::string options : {"", ",values=f32", ",residual=drop", ",index=28bit"}) {
    SCOPED_TRACE(options);
    TestWorld gather(1, "variance:alpha=0.5" + options, mixed_layout());
    TestWorld owner(1, "variance:collective=owner,alpha=0.5" + options, mixed_layout());
    for (unsigned step = 0; step < 5; ++step) {
      gather.second_moments = owner.second_moments = random_moments(1, gather.elements(), step);
      const auto gradients = normal_gradients(1, gather.elements(), step);
      ASSERT_EQ(owner.mean(gradients), gather.mean(gradients));
      ASSERT_EQ(owner.residual(0), gather.residual(0));
      ASSERT_EQ(owner.residual(0, "squares"), gather.residual(0, "squares"));
      EXPECT_EQ(owner.statistics[0].extract("owner").mapped(), 1);
      EXPECT_EQ(gather.statistics[0].extract("owner").mapped(), 0);
      ASSERT_EQ(owner.statistics[0], gather.statistics[0]);
    }
  }
}

// Each rank has a large gradient in other elements, so an owner gets N times as many as it answers.
// Totals that are not answered wait at their owner, and arrive in later steps.
TEST(VarianceOwner, TotalsWaitAndArrive) {
  constexpr int kWorld = 4;
  constexpr std::size_t kElements = 4000;
  TestWorld ranks(kWorld, "variance:collective=owner,values=f32", kElements);
  PerRank gradients(kWorld, std::vector<float>(kElements));
  for (std::size_t i = 0; i < kElements; ++i) {
    gradients[i % kWorld][i] = static_cast<float>(1 + i % 97);
  }
  ranks.second_moments = PerRank(kWorld, std::vector<float>(kElements, 1e-3F));
  std::vector<double> applied(kElements);
  for (int step = 0; step < 60; ++step) {
    const auto mean =
        ranks.mean(step == 0 ? gradients : PerRank(kWorld, std::vector<float>(kElements)));
    const auto arrived = std::ranges::count_if(mean, [](float value) { return value != 0; });
    if (step == 0) {
      EXPECT_NEAR(static_cast<double>(arrived), kElements / kWorld, 20);
    }
    for (std::size_t i = 0; i < kElements; ++i) applied[i] += mean[i] * double{kWorld};
    ranks.second_moments = PerRank(kWorld, std::vector<float>(kElements));
  }
  EXPECT_EQ(applied, exact_sum(gradients));
  for (std::size_t rank = 0; rank < kWorld; ++rank) {
    EXPECT_EQ(ranks.residual(rank), std::vector<float>(kElements)) << "rank " << rank;
  }
}

struct Outcome {
  double error = 0;  // of all means together, divided by the energy
  double sent = 0;   // bytes of rank 1 in all steps
};

// Half of the energy is common to all ranks, and the second moments are the same on all.
Outcome reduce_steps(const std::string& spec, int world, std::size_t elements) {
  TestWorld ranks(world, spec, elements);
  ranks.second_moments =
      PerRank(static_cast<std::size_t>(world), random_moments(1, elements, 1)[0]);
  for (auto& moments : ranks.second_moments) {
    for (float& moment : moments) moment *= 8;
  }
  std::vector<double> missing(elements);
  std::vector<double> wanted(elements);
  for (unsigned step = 0; step < 10; ++step) {
    auto gradients = normal_gradients(world, elements, step);
    const auto common = normal_gradients(1, elements, step + 1000)[0];
    for (auto& gradient : gradients) {
      for (std::size_t i = 0; i < elements; ++i) gradient[i] += common[i];
    }
    const auto sum = exact_sum(gradients);
    const auto mean = ranks.mean(gradients);
    for (std::size_t i = 0; i < elements; ++i) {
      wanted[i] += sum[i] / world;
      missing[i] += sum[i] / world - mean[i];
    }
  }
  const auto energy = [](const auto& values) {
    return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  };
  return {energy(missing) / energy(wanted),
          static_cast<double>(ranks.transport(1).total_traffic().bytes_sent)};
}

// Measured: 2.03 payloads and 1.14 times the error.
TEST(VarianceOwner, SendsTwoPayloadsAndHasLittleMoreErrorThanAGather) {
  constexpr int kWorld = 16;
  const Outcome gather = reduce_steps("variance:full=0,collective=gather", kWorld, 100'000);
  const Outcome owner = reduce_steps("variance:full=0,collective=owner", kWorld, 100'000);
  EXPECT_LT(owner.sent, 2.2 * gather.sent / (kWorld - 1));
  EXPECT_LT(owner.error, 1.2 * gather.error);
}

}  // namespace
}  // namespace thinreduce::variance_owner_test
