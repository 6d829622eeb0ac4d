#include "thinreduce/methods/topk/topk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/test_world.h"
#include "thinreduce/collective/chunks.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/bf16.h"

namespace thinreduce::topk_test {
namespace {

std::size_t expected_k(double density, std::size_t elements) {
  const auto k = static_cast<std::size_t>(std::llround(density * static_cast<double>(elements)));
  return std::clamp<std::size_t>(k, 1, elements);
}

// Keeps the k elements of largest magnitude, by a full sort.
std::vector<float> largest(const std::vector<float>& values, std::size_t k) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return std::abs(values[a]) > std::abs(values[b]); });
  std::vector<float> kept(values.size());
  for (std::size_t i = 0; i < k; ++i) kept[order[i]] = values[order[i]];
  return kept;
}

// Returns the nearest bfloat16.
float rounded(float value) {
  std::uint16_t word = 0;
  kernels::reference::to_bf16(std::span(&value, 1), std::span(&word, 1));
  float back = 0;
  kernels::reference::from_bf16(std::span(&word, 1), 1, std::span(&back, 1));
  return back;
}

// One step of collective=owner in a few lines: residuals in, mean out. Each rank sends the largest
// elements outside its own range; an owner adds them to all of its own and keeps what its answer,
// the largest sums, does not send. Values are sent as bfloat16.
std::vector<float> owner_step(PerRank& held, double density) {
  const std::size_t elements = held[0].size();
  const std::size_t world = held.size();
  const auto range_of = [&](std::size_t rank) { return cut({0, elements}, world, rank); };
  PerRank sent(world);
  for (std::size_t rank = 0; rank < world; ++rank) {
    const Range own = range_of(rank);
    auto others = held[rank];
    for (std::size_t i = own.begin; i < own.end; ++i) others[i] = 0;
    const std::size_t count = elements - own.size();
    sent[rank] = largest(others, count == 0 ? 0 : expected_k(density, count));
    for (std::size_t i = 0; i < elements; ++i) {
      sent[rank][i] = rounded(sent[rank][i]);
      held[rank][i] -= sent[rank][i];
    }
  }
  std::vector<float> mean(elements);
  for (std::size_t owner = 0; owner < world; ++owner) {
    const Range own = range_of(owner);
    if (own.size() == 0) continue;
    std::vector<float> sum(own.size());
    for (std::size_t distance = world; distance > 0; --distance) {
      const std::size_t rank = (owner + distance) % world;
      const auto& part = rank == owner ? held[rank] : sent[rank];
      for (std::size_t i = 0; i < own.size(); ++i) sum[i] += part[own.begin + i];
    }
    const auto answer = largest(sum, expected_k(2.3 * density, own.size()));
    for (std::size_t i = 0; i < own.size(); ++i) {
      mean[own.begin + i] = rounded(answer[i]) * (1.0f / static_cast<float>(world));
      held[owner][own.begin + i] = sum[i] - rounded(answer[i]);
    }
  }
  return mean;
}

TEST(TopK, OwnersEqualThePlainAlgorithm) {
  for (const int world : kWorlds) {
    for (const std::size_t elements : {1u, 2u, 5u, 63u, 1009u, 4099u}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, " << elements << " elements");
      TestWorld ranks(world, "topk:density=0.03,collective=owner", elements);
      PerRank held(static_cast<std::size_t>(world), std::vector<float>(elements));
      for (unsigned step = 0; step < 3; ++step) {
        const auto gradients = normal_gradients(world, elements, step);
        for (std::size_t rank = 0; rank < held.size(); ++rank) {
          for (std::size_t i = 0; i < elements; ++i) held[rank][i] += gradients[rank][i];
        }
        ASSERT_EQ(ranks.mean(gradients), owner_step(held, 0.03));
      }
      for (std::size_t rank = 0; rank < held.size(); ++rank) {
        ASSERT_EQ(ranks.residual(rank), held[rank]);
      }
    }
  }
}

// A gather sends 15 payloads, of 64 + 4 + 6k bytes here.
TEST(TopK, OwnersSendTwoPayloadsAtAnyN) {
  constexpr std::size_t kElements = 240000;
  for (const int world : {4, 16, 32}) {
    TestWorld ranks(world, "topk:density=0.1,collective=owner", kElements);
    (void)ranks.mean(normal_gradients(world, kElements, 2));
    const auto sent = static_cast<double>(ranks.transport(1).total_traffic().bytes_sent);
    EXPECT_LT(sent, 2.2 * (64 + 4 + 6 * 0.1 * kElements)) << world << " ranks";
  }
}

// Values that bfloat16 can't reach are cut; the rest waits in the residual.
TEST(TopK, OwnersCutTheLargestFloats) {
  constexpr float kMax = std::numeric_limits<float>::max();
  TestWorld ranks(2, "topk:collective=owner", 4);
  const auto mean = ranks.mean({{kMax, 0, 0, 0}, {0, 0, -kMax, 0}});
  const float largest = 0x1.fep127F;
  EXPECT_EQ(mean, (std::vector<float>{largest / 2, 0, -largest / 2, 0}));
  EXPECT_EQ(ranks.residual(0)[0], kMax - largest);
}

// The whole method in a dozen lines; the real one must have the same bits over several steps: top-k
// of residual + gradient, summed in rank order, times 1/N.
TEST(TopK, EqualsThePlainAlgorithm) {
  for (const int world : kWorlds) {
    for (const auto elements : kBucketSizes) {
      for (const char* feedback : {"on", "off"}) {
        SCOPED_TRACE(testing::Message()
                     << world << " ranks, " << elements << " elements, feedback " << feedback);
        TestWorld ranks(world,
                        std::string("topk:density=0.03,collective=gather,feedback=") + feedback,
                        elements);
        PerRank residual(static_cast<std::size_t>(world), std::vector<float>(elements));
        for (unsigned step = 0; step < 3; ++step) {
          const auto gradients = normal_gradients(world, elements, step);
          std::vector<float> expected(elements);
          for (std::size_t rank = 0; rank < residual.size(); ++rank) {
            auto& held = residual[rank];
            for (std::size_t i = 0; i < elements; ++i) held[i] += gradients[rank][i];
            const auto sent = largest(held, expected_k(0.03, elements));
            for (std::size_t i = 0; i < elements; ++i) {
              expected[i] += sent[i];
              if (sent[i] != 0) held[i] = 0;
            }
            if (feedback == std::string("off")) std::fill(held.begin(), held.end(), 0.0f);
          }
          for (auto& value : expected) value *= 1.0f / static_cast<float>(world);
          ASSERT_EQ(ranks.mean(gradients), expected);
        }
        if (feedback == std::string("on")) {
          for (std::size_t rank = 0; rank < residual.size(); ++rank) {
            ASSERT_EQ(ranks.residual(rank), residual[rank]);
          }
        } else {
          EXPECT_TRUE(ranks.residual(0).empty());
        }
      }
    }
  }
}

// Applied means times N plus residuals are the sum of all gradients; exactly, on whole numbers and
// N a power of two.
TEST(TopK, FeedbackSendsEverythingInTheEnd) {
  constexpr std::size_t kElements = 500;
  TestWorld ranks(2, "topk:density=0.1", kElements);
  const auto gradients = whole_gradients(2, kElements, 1);
  const auto sum = exact_sum(gradients);
  std::vector<double> applied(kElements);
  for (int step = 0; step < 10; ++step) {
    const auto mean = ranks.mean(step == 0 ? gradients : PerRank(2, std::vector<float>(kElements)));
    for (std::size_t i = 0; i < kElements; ++i) applied[i] += 2.0 * static_cast<double>(mean[i]);
  }
  EXPECT_EQ(applied, sum);
  EXPECT_EQ(ranks.residual(0), std::vector<float>(kElements));
}

TEST(TopK, DensityOneIsTheMean) {
  for (const int world : kWorlds) {
    TestWorld ranks(world, "topk:density=1,collective=gather", 4099);
    const auto gradients = normal_gradients(world, 4099, 3);
    const auto sum = exact_sum(gradients);
    const auto mean = ranks.mean(gradients);
    for (std::size_t i = 0; i < mean.size(); ++i) ASSERT_NEAR(mean[i], sum[i] / world, 1e-6);
  }
}

TEST(TopK, ZerosCostNothing) {
  TestWorld ranks(3, "topk", 70000);
  EXPECT_EQ(ranks.mean(PerRank(3, std::vector<float>(70000))), std::vector<float>(70000));
  EXPECT_EQ(ranks.transport(0).total_traffic().bytes_sent, 2 * kFrameHeaderBytes);
  EXPECT_EQ(ranks.statistics[0].at("sent"), 0);
}

TEST(TopK, BytesAndFractionSent) {
  TestWorld ranks(2, "topk:density=0.01", 100000);
  (void)ranks.mean(normal_gradients(2, 100000, 4));
  EXPECT_EQ(ranks.transport(0).total_traffic().bytes_sent, kFrameHeaderBytes + 2 * 4 + 1000 * 6);
  EXPECT_EQ(ranks.statistics[0].at("sent"), 0.01);
}

TEST(TopK, EmptyBucket) {
  TestWorld ranks(2, "topk", 0);
  EXPECT_TRUE(ranks.mean(PerRank(2)).empty());
}

TEST(TopK, OptionsAreChecked) {
  for (const char* spec : {"topk:density=0", "topk:density=1.01", "topk:density=nan",
                           "topk:feedback=perhaps", "topk:k=5"}) {
    EXPECT_THROW((void)Spec::parse(spec), Error) << spec;
  }
}

}  // namespace
}  // namespace thinreduce::topk_test
