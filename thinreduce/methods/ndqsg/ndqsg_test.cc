#include "thinreduce/methods/ndqsg/ndqsg.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/test_data.h"
#include "tests/test_world.h"
#include "thinreduce/error.h"
#include "thinreduce/methods/ndqsg/code.h"
#include "thinreduce/methods/ndqsg/side_information.h"
#include "thinreduce/methods/quantize/block_quantizer.h"
#include "thinreduce/wire/random.h"

namespace thinreduce::ndqsg_test {
namespace {

// Gradients that are equal on all ranks up to a little noise, with the same largest magnitude.
PerRank correlated_gradients(int world, std::size_t elements, float noise, unsigned seed) {
  const auto common = normal_gradients(1, elements, seed)[0];
  auto gradients = normal_gradients(world, elements, seed + 1000);
  for (auto& gradient : gradients) {
    for (std::size_t i = 0; i < elements; ++i) {
      gradient[i] = std::clamp(common[i] + noise * gradient[i], -3.5f, 3.5f);
    }
    for (std::size_t i = 0; i < elements; i += 512) gradient[i] = 3.5f;
  }
  return gradients;
}

double mean_square_error(const std::vector<float>& mean, const PerRank& gradients) {
  const auto sum = exact_sum(gradients);
  double squares = 0;
  for (std::size_t i = 0; i < mean.size(); ++i) {
    squares += std::pow(mean[i] - sum[i] / static_cast<double>(gradients.size()), 2);
  }
  return squares / static_cast<double>(mean.size());
}

// x' - x = alpha*e - (1 - alpha^2)*z if and only if |alpha*z + e| < ratio*s/2; e is known here from
// the fine codes. Tests odd and even ratios, with distances on both sides of the boundary.
TEST(NestedCode, IdentityAndItsBoundary) {
  const RandomKey key = random_key({.seed = 8});
  std::mt19937 random(9);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (const std::uint32_t ratio : {2u, 3u, 4u, 5u, 8u}) {
    for (const double alpha : {1.0, 0.9, 0.6}) {
      constexpr std::size_t kElements = 20000;
      BlockQuantizer quantizer{{kElements, kElements}, 4 * ratio};
      quantizer.gain = static_cast<float>(alpha);
      const NestedCode code{ratio, quantizer.gain};
      std::vector<float> x(kElements), y(kElements), scales(1), fine(kElements), found(kElements);
      for (auto& value : x) value = uniform(random);
      quantizer.measure(x, 0, 0, scales);
      const float step_size = quantizer.step_size(scales[0]);
      std::vector<std::uint32_t> codes(kElements);
      quantizer.quantize(x, 0, scales, key, codes);
      quantizer.dequantize(codes, 0, scales, {.keys = std::span(&key, 1)}, fine);
      code.wrap(codes);
      for (const auto one : codes) ASSERT_LT(one, ratio);
      quantizer.dequantize(codes, 0, scales, {.keys = std::span(&key, 1)}, found);
      int inside = 0, outside = 0;
      for (std::size_t i = 0; i < kElements; ++i) {
        y[i] = x[i] + uniform(random) * static_cast<float>(ratio) * step_size;
        const double z = static_cast<double>(x[i]) - y[i];
        const double e = static_cast<double>(fine[i]) - quantizer.gain * x[i];
        const double half = ratio * static_cast<double>(step_size) / 2;
        const double reach = std::abs(quantizer.gain * z + e);
        if (std::abs(reach - half) < 1e-4 * half) continue;  // float rounding decides
        const float value = code.value(found[i], y[i], step_size);
        const double expected = x[i] + quantizer.gain * e - (1 - code.alpha * code.alpha) * z;
        const bool near = std::abs(value - expected) < 1e-4 * half;
        ASSERT_EQ(near, reach < half) << ratio << ' ' << alpha << ' ' << reach / half;
        ASSERT_EQ(code.failed(value, x[i], y[i], step_size), !near);
        ++(near ? inside : outside);
      }
      EXPECT_GT(inside, 3000);
      EXPECT_GT(outside, 3000);
    }
  }
}

// With alpha = 1 decoding succeeds whenever |z| < (coarse - fine)/2, whatever the dither.
TEST(NestedCode, NeverFailsWithinHalfTheDifferenceOfTheSteps) {
  const RandomKey key = random_key({.seed = 10});
  const BlockQuantizer quantizer{{5000, 5000}, 3};
  const NestedCode code{3, 1};
  const auto x = normal_gradients(1, 5000, 11)[0];
  std::vector<float> scales(1), found(5000);
  quantizer.measure(x, 0, 0, scales);
  std::vector<std::uint32_t> codes(5000);
  quantizer.quantize(x, 0, scales, key, codes);
  code.wrap(codes);
  quantizer.dequantize(codes, 0, scales, {.keys = std::span(&key, 1)}, found);
  const float step_size = quantizer.step_size(scales[0]);
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (const float z : {-0.999f, -0.5f, 0.0f, 0.999f}) {
      ASSERT_LE(std::abs(code.value(found[i], x[i] - z * step_size, step_size) - x[i]),
                0.501f * step_size);
    }
  }
}

TEST(NestedCode, BestAlphaHasTheLeastError) {
  for (const double variance : {0.1, 0.5, 2.0, 100.0}) {
    const auto error = [&](double alpha) {
      return alpha * alpha / 12 + std::pow(1 - alpha * alpha, 2) * variance;
    };
    const double best = NestedCode::best_alpha(variance);
    for (double alpha = 0.5; alpha <= 1; alpha += 0.01) {
      EXPECT_LE(error(best), error(alpha) + 1e-12) << variance << ' ' << alpha;
    }
  }
  EXPECT_EQ(NestedCode::best_alpha(0), 0.5);
}

// The measured error follows the formula and is smallest at the best alpha.
TEST(NestedCode, ErrorsHaveTheVarianceOfTheFormula) {
  const RandomKey key = random_key({.seed = 12});
  constexpr std::size_t kElements = 50'000;
  const auto x = normal_gradients(1, kElements, 13)[0];
  const auto noise = normal_gradients(1, kElements, 14)[0];
  const double variance = 0.12;  // of z, in squared step sizes
  for (const double alpha : {1.0, NestedCode::best_alpha(variance)}) {
    BlockQuantizer quantizer{{kElements, kElements}, 15};
    quantizer.gain = static_cast<float>(alpha);
    const NestedCode code{5, alpha};
    std::vector<float> scales(1), found(kElements);
    quantizer.measure(x, 0, 0, scales);
    std::vector<std::uint32_t> codes(kElements);
    quantizer.quantize(x, 0, scales, key, codes);
    code.wrap(codes);
    quantizer.dequantize(codes, 0, scales, {.keys = std::span(&key, 1)}, found);
    const float step_size = quantizer.step_size(scales[0]);
    double squares = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      const float y = x[i] - noise[i] * static_cast<float>(std::sqrt(variance)) * step_size;
      squares += std::pow((code.value(found[i], y, step_size) - x[i]) / step_size, 2);
    }
    const double expected = alpha * alpha / 12 + std::pow(1 - alpha * alpha, 2) * variance;
    EXPECT_NEAR(squares / kElements / expected, 1, 6 * std::sqrt(2.0 / kElements));
  }
}

TEST(NestedCode, StaysFinite) {
  constexpr float kMaxFloat = std::numeric_limits<float>::max();
  const NestedCode code{3, 1};
  for (const float fine : {-kMaxFloat, 0.0f, kMaxFloat}) {
    for (const float y : {-kMaxFloat, 0.0f, kMaxFloat}) {
      for (const float step_size : {0x1p-100f, 1.0f, kMaxFloat}) {
        EXPECT_TRUE(std::isfinite(code.value(fine, y, step_size)));
      }
    }
  }
}

// On correlated ranks, nesting has the error of dithered codes with a fifth fewer bytes.
TEST(Ndqsg, SameErrorAsDqsgWithAFifthLessBytes) {
  constexpr std::size_t kElements = 102400;
  const auto gradients = correlated_gradients(4, kElements, 0.05f, 1);
  for (const char* options : {"", ",plain_fraction=0.25"}) {
    TestWorld plain(4, "dqsg:levels=7,collective=gather,entropy=off", kElements);
    TestWorld nested(4, std::string("ndqsg:entropy=off") + options, kElements);
    const double plain_error = mean_square_error(plain.mean(gradients), gradients);
    const double nested_error = mean_square_error(nested.mean(gradients), gradients);
    EXPECT_EQ(nested.statistics[0].at("decode_failures"), 0);
    EXPECT_NEAR(nested_error / plain_error, 1, 0.05);
    double plain_bytes = 0, nested_bytes = 0;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      plain_bytes += static_cast<double>(plain.transport(rank).total_traffic().bytes_sent);
      nested_bytes += static_cast<double>(nested.transport(rank).total_traffic().bytes_sent);
    }
    EXPECT_LT(nested_bytes / plain_bytes, 0.8);
  }
}

TEST(Ndqsg, OddAndEvenRatiosFractionsAndWorlds) {
  for (const char* options :
       {"levels=3,nested=1", "levels=6,nested=2", "levels=4,nested=1", "levels=8,nested=2",
        "levels=10,nested=2,plain_fraction=0.3", "levels=3,nested=1,plain_fraction=0",
        "levels=3,nested=1,plain_fraction=1"}) {
    const double levels =
        static_cast<double>(Spec::parse(std::string("ndqsg:") + options).options.integer("levels"));
    for (const int world : kWorlds) {
      for (const std::size_t elements : {0u, 1u, 511u, 5009u}) {
        SCOPED_TRACE(testing::Message() << options << ", " << world << ", " << elements);
        TestWorld ranks(world, std::string("ndqsg:failures=1,") + options, elements);
        const auto gradients = correlated_gradients(world, elements, 0.01f, 2);
        for (int step = 0; step < 2; ++step) {
          const auto mean = ranks.mean(gradients);
          const auto sum = exact_sum(gradients);
          for (std::size_t i = 0; i < elements; ++i) {
            ASSERT_NEAR(mean[i], sum[i] / world, 0.51 * 3.5 / levels);
          }
        }
        if (world > 1 && elements > 0 && ranks.statistics[0].at("nested") == 1) {
          EXPECT_EQ(ranks.statistics[0].at("decode_failures"), 0);
        }
      }
    }
  }
}

// With failures=1, as in the paper, wrong values are not avoided, but counted.
TEST(Ndqsg, FailuresAreReportedAsTheyAre) {
  constexpr std::size_t kElements = 600'000;
  TestWorld ranks(2, "ndqsg:failures=1", kElements);
  const auto gradients = correlated_gradients(2, kElements, 0.6f, 3);
  const auto mean = ranks.mean(gradients);
  const double step_size = 3.5 / 3;
  std::size_t failures = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    // Two errors of at most half a step size each, or a jump of three in one of the two values.
    const double error = 2.0 * mean[i] - gradients[0][i] - gradients[1][i];
    failures += std::abs(error) > 1.5 * step_size ? 1 : 0;
  }
  EXPECT_GT(failures, kElements / 50);
  for (const auto& statistics : ranks.statistics) {
    EXPECT_EQ(statistics.at("decode_failures"), static_cast<double>(failures) / kElements);
    EXPECT_EQ(statistics.at("nested_fraction"), 1);
  }
}

// However far apart the ranks are, and however small the bucket, no value is decoded wrongly: every
// mean is within half a step size, and their average over many steps is the true mean.
TEST(Ndqsg, IsRightOnAverage) {
  constexpr int kRanks = 4;
  constexpr unsigned kSteps = 200;
  for (const std::size_t elements : {100u, 2048u, 5009u}) {
    for (const float noise : {0.05f, 0.3f, 0.6f, 100.0f}) {
      SCOPED_TRACE(testing::Message() << elements << " elements, noise " << noise);
      const auto gradients = correlated_gradients(kRanks, elements, noise, 4);
      TestWorld ranks(kRanks, "ndqsg", elements);
      const double step_size = 3.5 / 3;
      const auto sum = exact_sum(gradients);
      std::vector<double> average(elements);
      double nested = 0;
      for (unsigned step = 0; step < kSteps; ++step) {
        const auto mean = ranks.mean(gradients);
        for (std::size_t i = 0; i < elements; ++i) {
          ASSERT_NEAR(mean[i], sum[i] / kRanks, 0.5001 * step_size) << "step " << step;
          average[i] += mean[i] / static_cast<double>(kSteps);
        }
        nested += ranks.statistics[0].at("nested_fraction");
      }
      double squares = 0;
      for (std::size_t i = 0; i < elements; ++i) {
        squares += std::pow(average[i] - sum[i] / kRanks, 2);
      }
      // The mean of four uniform errors, averaged over the steps. A sum of `elements` squares
      // deviates by a factor of 1 + sqrt(2 / elements); seven deviations of the smallest bucket.
      const double expected =
          static_cast<double>(elements) * step_size * step_size / 12 / kRanks / kSteps;
      EXPECT_LT(squares, 2 * expected);
      // In a small bucket the flags and lengths outweigh what shorter codes save.
      if (noise < 0.1f && elements > 2048) {
        EXPECT_EQ(nested, kSteps);
      }
      if (noise > 1) {
        EXPECT_LT(nested, 0.1 * kSteps);
      }
    }
  }
}

// With uncorrelated ranks the bucket falls back to plain codes and tries again later.
TEST(Ndqsg, StepsBackAndTriesAgain) {
  constexpr std::size_t kElements = 100'000;
  TestWorld ranks(2, "ndqsg", kElements);
  std::vector<double> nested;
  for (unsigned step = 0; step < 20; ++step) {
    const auto gradients = normal_gradients(2, kElements, step);
    const auto mean = ranks.mean(gradients);
    nested.push_back(ranks.statistics[0].at("nested"));
    EXPECT_EQ(ranks.statistics[1].at("nested"), nested.back());
    EXPECT_EQ(ranks.method(0).fingerprint(), ranks.method(1).fingerprint());
  }
  std::vector<double> expected(20, 0);
  expected[0] = 1;
  expected[17] = 1;
  EXPECT_EQ(nested, expected);
}

TEST(Ndqsg, StaysNestedWhereRanksAgree) {
  constexpr std::size_t kElements = 20'000;
  TestWorld ranks(4, "ndqsg", kElements);
  for (unsigned step = 0; step < 10; ++step) {
    (void)ranks.mean(correlated_gradients(4, kElements, 0.05f, step));
    EXPECT_EQ(ranks.statistics[0].at("nested"), 1);
  }
}

// One scale for a layer with a few large elements: its codes are mostly 0, ranks agree on nearly
// all of them, and codes modulo 3 are shorter only at a fixed length.
TEST(Ndqsg, NestsWhereThatSavesBytes) {
  const BucketLayout layout = layout_of({{200, 300}});
  for (const std::string entropy : {"off", "on"}) {
    TestWorld ranks(4, "ndqsg:block=layer,entropy=" + entropy, layout);
    double fraction = 0;
    for (unsigned step = 0; step < 10; ++step) {
      auto gradients = normal_gradients(4, layout.elements, step);
      for (auto& gradient : gradients) gradient[123] = 30;
      (void)ranks.mean(gradients);
      for (const auto& statistics : ranks.statistics) {
        EXPECT_EQ(statistics.at("nested_fraction"), ranks.statistics[0].at("nested_fraction"));
      }
      fraction += ranks.statistics[0].at("nested_fraction") / 10;
    }
    if (entropy == "off") {
      EXPECT_GT(fraction, 0.9);
    } else {
      EXPECT_LT(fraction, 0.11);  // the first step only
    }
  }
}

// Each nested rank measures its distances from y; here y has only its own error.
TEST(Ndqsg, AlphaIsMeasured) {
  constexpr std::size_t kElements = 100'000;
  TestWorld ranks(4, "ndqsg:alpha=auto,plain_fraction=0.25", kElements);
  for (unsigned step = 0; step < 3; ++step) {
    (void)ranks.mean(correlated_gradients(4, kElements, 0.1f, step));
    EXPECT_EQ(ranks.statistics[0].at("alpha"), ranks.statistics[3].at("alpha"));
    EXPECT_EQ(ranks.method(0).fingerprint(), ranks.method(3).fingerprint());
  }
  // var(z) = s^2/12 + 2*0.1^2, with a step size s of 3.5/3.
  const double expected = NestedCode::best_alpha(1 / 12.0 + 2 * 0.01 / std::pow(3.5 / 3, 2));
  EXPECT_NEAR(ranks.statistics[0].at("alpha"), expected, 0.05);
}

TEST(SideInformation, SavedStateGoesOnAlike) {
  SideInformation one;
  SideInformation two;
  one.learn(0.01);
  EXPECT_NE(one.fingerprint(), two.fingerprint());
  MemoryArchive archive(0, 1);
  one.state(archive);
  archive.shows_back = true;
  two.state(archive);
  EXPECT_EQ(one.fingerprint(), two.fingerprint());
  EXPECT_EQ(one.nests(), two.nests());
}

TEST(Ndqsg, SameBitsOnEveryTarget) {
  const auto gradients = correlated_gradients(3, 3001, 0.3f, 5);
  const auto before = kernels::active_target();
  kernels::use_target("reference");
  const auto expected = TestWorld(3, "ndqsg:failures=1", 3001).mean(gradients);
  kernels::on_every_target(
      [&] { EXPECT_EQ(TestWorld(3, "ndqsg:failures=1", 3001).mean(gradients), expected); });
  kernels::use_target(before);
}

// With owners all codes are plain: the bits and the bytes of dqsg with the same levels.
TEST(Ndqsg, OwnersGetTheCodesOfDqsg) {
  for (const std::string options : {"", ",feedback=on,block=100,answer_levels=15,entropy=off"}) {
    TestWorld nested(3, "ndqsg:collective=owner,levels=3" + options, 5009);
    TestWorld dithered(3, "dqsg:collective=owner,levels=7" + options, 5009);
    for (unsigned step = 0; step < 3; ++step) {
      const auto gradients = normal_gradients(3, 5009, step);
      ASSERT_EQ(nested.mean(gradients), dithered.mean(gradients));
    }
    EXPECT_EQ(nested.transport(0).total_traffic().bytes_sent,
              dithered.transport(0).total_traffic().bytes_sent);
  }
}

}  // namespace
}  // namespace thinreduce::ndqsg_test
