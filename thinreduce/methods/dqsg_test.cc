#include "thinreduce/methods/dqsg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/test_world.h"
#include "thinreduce/collective/checked.h"
#include "thinreduce/collective/ring.h"
#include "thinreduce/error.h"
#include "thinreduce/methods/quantize/dither.h"
#include "thinreduce/methods/quantize/dithered_sum.h"
#include "thinreduce/wire/random.h"

namespace thinreduce::dqsg_test {
namespace {

constexpr float kMaxFloat = std::numeric_limits<float>::max();

// The mean of dithered codes as in the paper, element by element.
std::vector<float> plain_integer_sum(const PerRank& gradients, const BlockQuantizer& quantizer,
                                     std::uint64_t step) {
  const auto world = static_cast<std::uint32_t>(gradients.size());
  std::vector<float> mean(gradients[0].size());
  std::vector<float> scales(quantizer.blocks());
  for (const auto& gradient : gradients) {
    for (std::size_t i = 0; i < mean.size(); ++i) {
      auto& scale = scales[i / quantizer.grid.block()];
      scale = std::max(scale, std::abs(gradient[i]));
    }
  }
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const float size = quantizer.step_size(scales[i / quantizer.grid.block()]);
    if (size == 0) continue;
    double sum = 0;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      const RandomKey key = random_key({.step = step, .rank = rank});
      const float u = kernels::dither(key, static_cast<std::uint32_t>(i));
      sum += std::nearbyint(gradients[rank][i] * (1 / size) + u) - static_cast<double>(u);
    }
    mean[i] = static_cast<float>(sum) * 65536 * (size * (1.0f / static_cast<float>(world)) / 65536);
  }
  return mean;
}

// The same bits over several steps. Sums of codes and dither are multiples of 2^-17 and exact here.
TEST(Dqsg, IntegerSumEqualsThePlainAlgorithm) {
  for (const int world : kWorlds) {
    for (const std::size_t elements : {1u, 2u, 63u, 1009u, 2560u, 2561u, 7001u}) {
      for (const std::size_t block : {64u, 1000u}) {
        SCOPED_TRACE(testing::Message() << world << " ranks, " << elements << ", " << block);
        const BlockQuantizer quantizer{{elements, block}, 3};
        TestWorld ranks(world, "dqsg:collective=ring,levels=7,block=" + std::to_string(block),
                        elements);
        for (unsigned step = 0; step < 2; ++step) {
          const auto gradients = normal_gradients(world, elements, step);
          ASSERT_EQ(ranks.mean(gradients), plain_integer_sum(gradients, quantizer, step));
        }
      }
    }
  }
}

// For every collective, world and many sizes, the error is at most half a step size of the widest
// rank plus, with a root or owners, half a step size of the answer.
TEST(Dqsg, EveryWayIsNearTheMean) {
  for (const char* spec :
       {"dqsg", "dqsg:levels=3", "dqsg:levels=255", "dqsg:collective=gather",
        "dqsg:collective=root", "dqsg:collective=gather,entropy=off,levels=15",
        "dqsg:collective=root,levels=3", "dqsg:block=1", "dqsg:collective=owner,answer_levels=127",
        "dqsg:collective=owner,answer_levels=127,levels=3,entropy=off",
        "dqsg:collective=owner,answer_levels=127,block=1",
        "dqsg:collective=owner,answer_levels=127,block=100000", "dqsg:block=1,collective=gather",
        "dqsg:block=100000"}) {
    const auto levels = Spec::parse(spec).options.integer("levels");
    for (const int world : kWorlds) {
      for (const std::size_t elements : {0u, 1u, 5u, 1000u, 2561u, 20011u}) {
        SCOPED_TRACE(testing::Message() << spec << ", " << world << " ranks, " << elements);
        TestWorld ranks(world, spec, elements);
        const auto gradients = normal_gradients(world, elements, 1);
        float largest = 0;
        for (const auto& gradient : gradients) {
          for (const float value : gradient) largest = std::max(largest, std::abs(value));
        }
        const auto sum = exact_sum(gradients);
        const auto mean = ranks.mean(gradients);
        const double bound = 0.501 * largest * (2.0 / static_cast<double>(levels - 1) + 2.0 / 127);
        for (std::size_t i = 0; i < elements; ++i) {
          ASSERT_NEAR(mean[i], sum[i] / world, bound);
        }
      }
    }
  }
}

// Dithers are independent: the error of the mean of P ranks has the variance s^2 / (12 P).
TEST(Dqsg, ErrorsAverageOutOverTheRanks) {
  constexpr std::size_t kElements = 50'000;
  for (const char* collective : {"ring", "gather"}) {
    for (const int world : {1, 2, 4, 7}) {
      // All ranks have the same largest magnitude, so that their step sizes are equal as well.
      auto gradients = normal_gradients(world, kElements, 2);
      for (auto& gradient : gradients) {
        for (auto& value : gradient) value = std::clamp(value, -4.0f, 4.0f);
        gradient[0] = 4;
      }
      TestWorld ranks(world, std::string("dqsg:block=50000,collective=") + collective, kElements);
      const auto sum = exact_sum(gradients);
      const auto mean = ranks.mean(gradients);
      double squares = 0;
      for (std::size_t i = 0; i < kElements; ++i) {
        squares += std::pow(mean[i] - sum[i] / world, 2);
      }
      const double step_size = 4.0 / 3;
      const double expected = step_size * step_size / 12 / world;
      // The relative deviation of a mean of squares is at most sqrt(2/n).
      EXPECT_NEAR(squares / kElements / expected, 1, 6 * std::sqrt(2.0 / kElements));
    }
  }
}

TEST(Dqsg, ManyStepsAverageToTheMean) {
  constexpr std::size_t kElements = 3000;
  constexpr int kSteps = 200;
  for (const char* spec :
       {"dqsg:levels=3", "dqsg:levels=3,collective=gather", "dqsg:levels=3,collective=root",
        "dqsg:levels=3,answer_levels=3,collective=owner", "qsgd:bits=2,block=16",
        "qsgd:bits=2,block=16,collective=owner", "terngrad:clip=0,block=512",
        "terngrad:clip=0,block=512,collective=owner"}) {
    SCOPED_TRACE(spec);
    TestWorld ranks(2, spec, kElements);
    const auto gradients = normal_gradients(2, kElements, 3);
    const auto sum = exact_sum(gradients);
    std::vector<double> average(kElements);
    double first_error = 0;
    double last_error = 0;
    for (int step = 0; step < kSteps; ++step) {
      const auto mean = ranks.mean(gradients);
      for (std::size_t i = 0; i < kElements; ++i) {
        average[i] += mean[i];
        if (step == 0) first_error += std::pow(average[i] - sum[i] / 2, 2);
      }
    }
    for (std::size_t i = 0; i < kElements; ++i) {
      last_error += std::pow(average[i] / kSteps - sum[i] / 2, 2);
    }
    EXPECT_NEAR(last_error / first_error * kSteps, 1, 0.2);
  }
}

// The bytes that collective/ring.h documents, for the code widths of 1, 2, ... ranks.
TEST(Dqsg, RingBytes) {
  constexpr std::size_t kElements = 12 * kernels::kCodesPerPack;
  for (const std::uint32_t levels : {3u, 7u}) {
    for (const int world : {2, 3, 4}) {
      TestWorld ranks(world, "dqsg:levels=" + std::to_string(levels), kElements);
      ranks.link = kRingLink;
      (void)ranks.mean(normal_gradients(world, kElements, 4));
      const std::size_t chunk = kElements / static_cast<std::size_t>(world);
      const auto width = [&](int summed) {
        return kernels::Packing::of(static_cast<std::uint32_t>(summed) * (levels - 1) + 1)
            .bytes(chunk);
      };
      std::size_t expected = ring_bytes_sent(0, world, kElements / 512, sizeof(float)) +
                             2 * kMessageChecksumBytes * static_cast<std::size_t>(world - 1);
      for (int hop = 1; hop < world; ++hop) expected += width(hop) + width(world);
      EXPECT_EQ(ranks.transport(0).total_traffic().bytes_sent, expected)
          << levels << " levels, " << world << " ranks";
    }
  }
}

// With 16 ranks, owners send few payloads where a gather sends 15, for a little more error.
TEST(Dqsg, OwnersSendFewPayloads) {
  constexpr std::size_t kElements = 256 * 1024;
  constexpr int kWorld = 16;
  const auto gradients = normal_gradients(kWorld, kElements, 8);
  const auto sum = exact_sum(gradients);
  const auto measure = [&](const std::string& spec) {
    TestWorld ranks(kWorld, spec, kElements);
    const auto mean = ranks.mean(gradients);
    double error = 0;
    for (std::size_t i = 0; i < kElements; ++i) error += std::pow(mean[i] - sum[i] / kWorld, 2);
    return std::pair(static_cast<double>(ranks.transport(0).total_traffic().bytes_sent), error);
  };
  for (const std::string method : {"dqsg", "qsgd", "terngrad"}) {
    const auto [gathered, gather_error] = measure(method + ":collective=gather");
    const auto [owned, owner_error] = measure(method + ":collective=owner");
    EXPECT_LT(owned, 3.3 * gathered / (kWorld - 1)) << method;
    EXPECT_LT(owner_error, 1.1 * gather_error) << method;
  }
}

// The codes of stochastic rounding are those of a dither: the owner of a part subtracts it, so a
// rank's error is the same for all values, at most half a step size.
TEST(Dqsg, OwnersSubtractTheDrawsOfStochasticRounding) {
  constexpr std::size_t kElements = 4096;
  const auto gradients = normal_gradients(2, kElements, 3);
  const auto sum = exact_sum(gradients);
  for (const char* spec : {"terngrad:clip=0,collective=owner,answer_levels=255",
                           "qsgd:bits=2,block=16,collective=owner,answer_levels=255"}) {
    TestWorld ranks(2, spec, kElements);
    const auto mean = ranks.mean(gradients);
    const bool norm = std::string(spec).starts_with("qsgd");
    for (std::size_t i = 0; i < kElements; ++i) {
      // The step size is the largest magnitude, or the norm of 16 values; the rest is the answer's.
      ASSERT_NEAR(mean[i], sum[i] / 2, (norm ? 8.0 : 4.5) / 4 + 0.05) << spec;
    }
  }
}

TEST(Dqsg, ZerosOneElementAndHugeValues) {
  for (const char* collective : {"ring", "gather", "root", "owner"}) {
    SCOPED_TRACE(collective);
    const std::string spec = std::string("dqsg:block=10,collective=") + collective;
    TestWorld zeros(3, spec, 1000);
    EXPECT_EQ(zeros.mean(PerRank(3, std::vector<float>(1000))), std::vector<float>(1000));
    for (const float value : {kMaxFloat, -kMaxFloat, 1e-44f}) {
      TestWorld ranks(3, spec, 1000);
      const auto mean = ranks.mean(PerRank(3, std::vector<float>(1000, value)));
      for (const float one : mean) {
        ASSERT_TRUE(std::isfinite(one));
        const float expected = std::abs(value) < 1 ? 0 : value;
        ASSERT_LT(std::abs(one / 2 - expected / 2), std::max(1e-29f, std::abs(expected / 4)));
      }
    }
  }
}

// Applied means times N plus residuals are the sum of all gradients, up to float rounding.
// Without feedback the clipped part is still kept; the quantization error is not. Rank 0 owns the
// large element, so that with owners only the part of rank 1 is clipped.
TEST(Dqsg, ClippedPartComesBackLater) {
  for (const std::string collective : {"ring", "gather", "owner,answer_levels=255"}) {
    constexpr std::size_t kElements = 1024;
    TestWorld ranks(2, "dqsg:clip=2,levels=255,collective=" + collective, kElements);
    const double unclipped = collective.starts_with("owner") ? 50 : 0;
    auto gradients = normal_gradients(2, kElements, 5);
    gradients[0][7] = 100;
    gradients[1][7] = 100;
    double applied = 0;
    for (int step = 0; step < 60; ++step) {
      const auto mean =
          ranks.mean(step == 0 ? gradients : PerRank(2, std::vector<float>(kElements)));
      applied += mean[7];
      EXPECT_LT(mean[7], unclipped + 20);
    }
    EXPECT_NEAR(applied, 100, 1);
  }
}

TEST(Dqsg, KeepsNothingByDefault) {
  for (const char* spec :
       {"dqsg", "dqsg:collective=gather", "dqsg:collective=owner", "ndqsg", "qsgd", "terngrad"}) {
    TestWorld ranks(1, spec, 100);
    (void)ranks.mean(normal_gradients(1, 100, 1));
    EXPECT_TRUE(ranks.residual(0).empty());
  }
}

// With a single rank, too, residual plus gradient may overflow.
TEST(Dqsg, OverflowOfTheResidualIsAnErrorOnOneRank) {
  for (const char* spec : {"dqsg:clip=0.01,block=100", "dqsg:clip=0.01,block=100,collective=gather",
                           "dqsg:feedback=on,block=100,collective=owner"}) {
    TestWorld ranks(1, spec, 100);
    const PerRank gradients(1, std::vector<float>(100, kMaxFloat));
    (void)ranks.mean(gradients);
    (void)ranks.step(gradients);
    EXPECT_NE(ranks.thrown[0], nullptr) << spec;
  }
}

// Random bytes from a neighbour in the ring, or from a rank that sends its part to the owner: an
// Error or a finite result.
TEST(Dqsg, HostileCodes) {
  std::mt19937 random(6);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    const int world = 2 + static_cast<int>(random() % 4);
    const BlockQuantizer quantizer{{1 + random() % 9000, 100}, random() % 2 == 0 ? 1u : 3u};
    const auto gradient = normal_gradients(1, quantizer.elements(), random())[0];
    std::vector<float> mean(quantizer.elements()), scales(quantizer.blocks(), 5.0f);
    const std::vector<RandomKey> keys(static_cast<std::size_t>(world), random_key({}));
    DitheredSumBuffers buffers;
    DitheredSum sum({.quantizer = quantizer,
                     .source = gradient,
                     .mean = mean,
                     .scales = scales,
                     .keys = keys,
                     .rank = 1},
                    buffers);
    const Range all{0, sum.units()};
    sum.encode(all);
    try {
      for (int summed = 1; summed < world; ++summed) {
        const bool by_owner = round % 2 == 0;
        std::vector<std::byte> incoming(sum.wire(all, by_owner ? 1 : summed).size());
        const bool all_zero = random() % 2 == 0;
        for (auto& byte : incoming)
          byte = all_zero ? std::byte{} : static_cast<std::byte>(random());
        if (by_owner) {
          sum.add_part(all, summed, incoming, 0);
        } else {
          sum.add(all, summed, incoming, 0);
        }
      }
      const auto place = sum.wire(all, world);
      if (random() % 2 == 0) place[random() % place.size()] = static_cast<std::byte>(random());
      sum.decode(all, 0);
      for (const float value : mean) ASSERT_TRUE(std::isfinite(value));
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(error.code(), ErrorCode::bad_frame);
      ASSERT_THAT(error.what(), testing::HasSubstr("from rank 0"));
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_LT(refused, 290);
}

TEST(Dqsg, OptionsAreChecked) {
  for (const char* spec :
       {"dqsg:levels=1", "dqsg:levels=257", "dqsg:block=0", "dqsg:collective=air", "dqsg:clip=-1",
        "dqsg:M=3", "qsgd:bits=1", "qsgd:bits=9", "ndqsg:alpha=2", "ndqsg:alpha=automatic",
        "ndqsg:plain_fraction=2", "dqsg:levels=4", "ndqsg:levels=3,nested=2",
        "ndqsg:levels=3,nested=3", "dqsg:answer_levels=30", "qsgd:answer_levels=30",
        "terngrad:answer_levels=2"}) {
    EXPECT_THROW((void)Spec::parse(spec), Error) << spec;
  }
  MethodSetup setup;
  setup.world = 300;
  EXPECT_THROW((void)Spec::parse("dqsg:levels=255").make(setup), Error);
  EXPECT_NO_THROW((void)Spec::parse("dqsg:levels=7").make(setup));
}

// Without feedback the rounding is dropped, the clipped part never: whatever the collective, what
// the means miss of an outlier is in the residuals, up to the rounding of the small values.
TEST(Dqsg, AClippedOutlierIsDeliveredInTime) {
  constexpr int kRanks = 4;
  constexpr unsigned kSteps = 30;
  for (const char* collective : {"ring", "gather", "root"}) {
    SCOPED_TRACE(collective);
    TestWorld ranks(kRanks, std::string("dqsg:levels=255,clip=2,collective=") + collective, 512);
    auto gradients = normal_gradients(kRanks, 512, 21);
    for (auto& gradient : gradients) gradient[100] = 200;
    double delivered = 0;
    for (unsigned step = 0; step < kSteps; ++step) delivered += ranks.mean(gradients)[100] * kRanks;
    double held = 0;
    for (std::size_t rank = 0; rank < kRanks; ++rank) held += ranks.kept(rank)[100];
    EXPECT_NEAR(delivered + held, kSteps * kRanks * 200.0, 0.01 * kSteps * kRanks * 200);
    EXPECT_GT(delivered, held);
  }
}

}  // namespace
}  // namespace thinreduce::dqsg_test
