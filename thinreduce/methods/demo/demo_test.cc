#include "thinreduce/methods/demo/demo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <vector>

#include "tests/test_world.h"
#include "thinreduce/methods/demo/cosines.h"

namespace thinreduce::demo_test {
namespace {

std::vector<float> sign_of(std::vector<float> values) {
  for (float& value : values) value = value > 0 ? 1.0F : value < 0 ? -1.0F : 0.0F;
  return values;
}

// Returns the inverse transform of the k largest coefficients of each chunk.
std::vector<float> largest_part(Cosines& cosines, std::size_t chunk, std::size_t k,
                                const std::vector<float>& values) {
  std::vector<float> all(cosines.size());
  cosines.forward(values, all, {});
  std::vector<float> kept(all.size());
  for (std::size_t first = 0; first < all.size(); first += chunk) {
    std::vector<std::size_t> order(chunk);
    std::iota(order.begin(), order.end(), first);
    std::ranges::stable_sort(order, std::greater<>(), [&](auto i) { return std::abs(all[i]); });
    for (std::size_t i = 0; i < k; ++i) kept[order[i]] = all[order[i]];
  }
  std::vector<float> part(values.size());
  cosines.inverse(kept,
                  [&](std::size_t offset, std::span<const float> floats) {
                    std::ranges::copy(floats, part.begin() + static_cast<std::ptrdiff_t>(offset));
                  },
                  {});
  return part;
}

// The paper's algorithm in a few lines, on every rank: the momentum decays, the gradient is added,
// and the large coefficients are sent and taken off.
TEST(Demo, IsThePapersAlgorithm) {
  constexpr std::size_t kChunk = 64;
  constexpr std::size_t kSent = 6;  // 0.1 of a chunk
  constexpr float kBeta = 0.9F;
  for (const int world : {1, 2, 3}) {
    const BucketLayout layout = mixed_layout();
    TestWorld ranks(world, "demo:beta=0.9,density=0.1,chunk=64,values=f32", layout);
    Cosines cosines(layout, kChunk);
    PerRank momentum(static_cast<std::size_t>(world), std::vector<float>(layout.elements));
    for (unsigned step = 0; step < 5; ++step) {
      const auto gradients = normal_gradients(world, layout.elements, step);
      std::vector<double> sum(layout.elements);
      for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
        auto& own = momentum[rank];
        for (std::size_t i = 0; i < own.size(); ++i) own[i] = kBeta * own[i] + gradients[rank][i];
        const auto sent = largest_part(cosines, kChunk, kSent, own);
        for (std::size_t i = 0; i < own.size(); ++i) {
          own[i] -= sent[i];
          sum[i] += static_cast<double>(sent[i]);
        }
      }
      const auto mean = ranks.mean(gradients);
      for (std::size_t i = 0; i < mean.size(); ++i) {
        ASSERT_NEAR(mean[i], sum[i] / world, 1e-5) << step << " " << i;
      }
    }
  }
}

// With one rank the mean is what was sent, so beta * (momentum + gradient - sent) is kept.
TEST(Demo, KeepsWhatItDoesNotSend) {
  for (const std::string beta : {"0", "0.5", "0.999", "1"}) {
    for (const char* values : {"f32", "2bit"}) {
      for (const auto& layout : {shapeless(1), shapeless(1009), shapeless(4099), mixed_layout()}) {
        SCOPED_TRACE(testing::Message() << beta << " " << values << " " << layout.elements);
        TestWorld ranks(1, "demo:beta=" + beta + ",values=" + values, layout);
        for (unsigned step = 0; step < 10; ++step) {
          const auto before = ranks.kept(0);
          const auto gradient = normal_gradients(1, layout.elements, step);
          const auto sent = ranks.mean(gradient);
          const auto after = ranks.kept(0);
          for (std::size_t i = 0; i < after.size(); ++i) {
            const double left = static_cast<double>(before[i]) + gradient[0][i] - sent[i];
            ASSERT_NEAR(after[i], std::stod(beta) * left, 1e-5) << i;
          }
        }
      }
    }
  }
}

TEST(Demo, SendsACosineWithOneCoefficient) {
  constexpr std::size_t kElements = 256;
  std::vector<float> wave(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    wave[i] = static_cast<float>(
        std::cos(std::numbers::pi * (static_cast<double>(i) + 0.5) * 7 / kElements));
  }
  TestWorld ranks(2, "demo:chunk=256,density=0.004,values=f32", kElements);
  const auto mean = ranks.mean({wave, wave});
  for (std::size_t i = 0; i < kElements; ++i) ASSERT_NEAR(mean[i], wave[i], 1e-5) << i;
  EXPECT_EQ(ranks.payload_bytes[0], 64u + 4u + 6u);  // header, count of the block, one value
}

// The signs are those of the mean that sign=off gives, and the momentum is the same.
TEST(Demo, HandsOutSigns) {
  const BucketLayout layout = mixed_layout();
  TestWorld plain(3, "demo", layout);
  TestWorld signs(3, "demo:sign=on", layout);
  for (unsigned step = 0; step < 4; ++step) {
    const auto gradients = normal_gradients(3, layout.elements, step);
    EXPECT_EQ(signs.mean(gradients), sign_of(plain.mean(gradients)));
    for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(signs.kept(rank), plain.kept(rank));
  }
  std::vector<float> means{0.5F, -3, 0};
  plain.method(0).finish_uncompressed(means);
  EXPECT_THAT(means, testing::ElementsAre(0.5F, -3, 0));
  signs.method(0).finish_uncompressed(means);
  EXPECT_THAT(means, testing::ElementsAre(1, -1, 0));
  EXPECT_TRUE(Spec::parse("demo:sign=on").update());
  EXPECT_FALSE(Spec::parse("demo").update());
}

TEST(Demo, GoesOnFromASavedMomentum) {
  const auto gradients = [](unsigned step) { return normal_gradients(2, 3000, step); };
  TestWorld one(2, "demo", 3000);
  for (unsigned step = 0; step < 3; ++step) (void)one.mean(gradients(step));
  TestWorld other(2, "demo", 3000);
  for (std::size_t rank = 0; rank < 2; ++rank) other.load(rank, one.saved(rank));
  EXPECT_EQ(one.mean(gradients(3)), other.mean(gradients(3)));
}

TEST(Demo, TakesLessThanHalfABitPerElement) {
  TestWorld ranks(2, "demo", 1 << 20);
  (void)ranks.mean(normal_gradients(2, 1 << 20, 1));
  EXPECT_LT(ranks.payload_bytes[0] * 8, (1U << 20U) / 2);
}

TEST(Demo, RefusesAChunkThatIsNoPowerOfTwo) {
  try {
    (void)Spec::parse("demo:chunk=100");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_spec);
    EXPECT_THAT(error.what(), testing::HasSubstr("power of two (got 100)"));
  }
}

}  // namespace
}  // namespace thinreduce::demo_test
