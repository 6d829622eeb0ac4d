// The laws of dithered quantization, on the quantizer that all methods share.
#include "thinreduce/methods/quantize/block_quantizer.h"
#include "tests/random_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/test_data.h"
#include "thinreduce/wire/random.h"

namespace thinreduce::block_quantizer_test {
namespace {

using Floats = std::vector<float>;
constexpr float kMaxFloat = std::numeric_limits<float>::max();

struct Coded {
  Floats scales;
  std::vector<std::uint32_t> codes;
};

Coded quantized(const BlockQuantizer& quantizer, const Floats& values, RandomKey key) {
  Coded coded{Floats(quantizer.blocks()), std::vector<std::uint32_t>(values.size())};
  quantizer.measure(values, 0, 0, coded.scales);
  quantizer.quantize(values, 0, coded.scales, key, coded.codes);
  return coded;
}

Floats dequantized(const BlockQuantizer& quantizer, const Coded& coded,
                   std::span<const RandomKey> keys) {
  Floats values(coded.codes.size());
  quantizer.dequantize(coded.codes, 0, coded.scales, {.keys = keys}, values);
  return values;
}

// Errors of one block of normal values, in step sizes. Stochastic rounding draws the same numbers
// but does not subtract them.
struct Errors {
  Floats values;
  std::vector<double> errors;
};
Errors errors_of(std::uint32_t levels_per_side, bool subtract, RandomKey replayed) {
  constexpr std::size_t kElements = 200'000;
  const BlockQuantizer quantizer{{kElements, kElements}, levels_per_side};
  const RandomKey key = random_key({.seed = 3});
  Errors result{normal_floats(kElements, 17), {}};
  const Coded coded = quantized(quantizer, result.values, key);
  const auto keys = subtract ? std::span(&replayed, 1) : std::span<const RandomKey>();
  const auto decoded = dequantized(quantizer, coded, keys);
  const double step_size = quantizer.step_size(coded.scales[0]);
  for (std::size_t i = 0; i < kElements; ++i) {
    result.errors.push_back((static_cast<double>(decoded[i]) - result.values[i]) / step_size);
  }
  return result;
}
Errors dithered_errors(std::uint32_t levels_per_side) {
  return errors_of(levels_per_side, true, random_key({.seed = 3}));
}

// The statistic times sqrt(n) exceeds 1.95 once in a thousand for a uniform sample.
double kolmogorov_smirnov(std::vector<double> errors) {
  std::sort(errors.begin(), errors.end());
  const auto n = static_cast<double>(errors.size());
  double worst = 0;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    const double expected = std::clamp(errors[i] + 0.5, 0.0, 1.0);
    worst = std::max({worst, std::abs(static_cast<double>(i) / n - expected),
                      std::abs(static_cast<double>(i + 1) / n - expected)});
  }
  return worst * std::sqrt(n);
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Correlation relative to its deviation for independent samples, 1/sqrt(n).
double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double mean_a = mean_of(a);
  const double mean_b = mean_of(b);
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return ab / std::sqrt(aa * bb) * std::sqrt(static_cast<double>(a.size()));
}

// Over ten bins of magnitude with as many values each: the largest correlation, in deviations, of
// the error with the value, and of the error's square with the magnitude.
struct Dependence {
  double of_error = 0;
  double of_square = 0;
};
Dependence dependence(const Errors& sample) {
  std::vector<std::size_t> order(sample.values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::abs(sample.values[a]) < std::abs(sample.values[b]);
  });
  Dependence worst;
  constexpr std::size_t kBins = 10;
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    std::vector<double> value, magnitude, error, square;
    for (std::size_t i = bin * order.size() / kBins; i < (bin + 1) * order.size() / kBins; ++i) {
      value.push_back(sample.values[order[i]]);
      magnitude.push_back(std::abs(value.back()));
      error.push_back(sample.errors[order[i]]);
      square.push_back(error.back() * error.back());
    }
    worst.of_error = std::max(worst.of_error, std::abs(correlation(value, error)));
    worst.of_square = std::max(worst.of_square, std::abs(correlation(magnitude, square)));
  }
  return worst;
}

TEST(DitheredError, IsUniformAndBounded) {
  for (const std::uint32_t levels_per_side : {1u, 3u, 7u, 127u}) {
    const auto sample = dithered_errors(levels_per_side);
    EXPECT_LT(kolmogorov_smirnov(sample.errors), 1.95) << levels_per_side;
    for (const double error : sample.errors) ASSERT_LE(std::abs(error), 0.5 + 1e-4);
  }
}

TEST(DitheredError, HasMeanZeroAndATwelfthOfTheSquaredStepSize) {
  for (const std::uint32_t levels_per_side : {1u, 3u, 7u}) {
    const auto sample = dithered_errors(levels_per_side);
    const auto n = static_cast<double>(sample.errors.size());
    std::vector<double> squares;
    for (const double error : sample.errors) squares.push_back(error * error);
    // Five deviations; the square of a uniform number has the variance 1/180.
    EXPECT_LT(std::abs(mean_of(sample.errors)), 5 * std::sqrt(1 / 12.0 / n));
    EXPECT_LT(std::abs(mean_of(squares) - 1 / 12.0), 5 * std::sqrt(1 / 180.0 / n));
  }
}

// Dithered errors are independent of the values. Stochastic rounding is unbiased too, but the size
// of its error depends on the position of a value between two levels.
TEST(DitheredError, IsIndependentOfTheValueInEveryBinAndQsgdsIsNot) {
  for (const std::uint32_t levels_per_side : {1u, 3u}) {
    const auto dithered = dependence(dithered_errors(levels_per_side));
    EXPECT_LT(dithered.of_error, 4.5);
    EXPECT_LT(dithered.of_square, 4.5);
    const auto stochastic = dependence(errors_of(levels_per_side, false, {}));
    EXPECT_LT(stochastic.of_error, 4.5);
    EXPECT_GT(stochastic.of_square, 9);
  }
}

TEST(DitheredError, StochasticRoundingIsNotUniform) {
  EXPECT_GT(kolmogorov_smirnov(errors_of(3, false, {}).errors), 10);
}

// Subtracting a different dither leaves the variance of both: 3/12 of a squared step size.
TEST(DitheredError, AWrongKeyFails) {
  for (const RandomKey wrong :
       {random_key({.seed = 4}), random_key({.seed = 3, .step = 1}),
        random_key({.seed = 3, .bucket = 1}), random_key({.seed = 3, .rank = 1})}) {
    const auto sample = errors_of(3, true, wrong);
    double squares = 0;
    for (const double error : sample.errors) squares += error * error;
    EXPECT_NEAR(squares / static_cast<double>(sample.errors.size()), 3 / 12.0, 0.01);
    EXPECT_GT(kolmogorov_smirnov(sample.errors), 10);
  }
}

TEST(BlockQuantizer, SameBitsOnEveryTarget) {
  const BlockQuantizer quantizer{{10007, 37}, 3};
  const auto values = kernels::mixed_floats(quantizer.elements(), 3);
  const RandomKey key = random_key({.seed = 1});
  const auto before = kernels::active_target();
  kernels::use_target("reference");
  const Coded expected = quantized(quantizer, values, key);
  const auto decoded = dequantized(quantizer, expected, std::span(&key, 1));
  kernels::on_every_target([&] {
    const Coded coded = quantized(quantizer, values, key);
    EXPECT_EQ(coded.scales, expected.scales);
    EXPECT_EQ(coded.codes, expected.codes);
    EXPECT_TRUE(
        kernels::same_bits<float>(dequantized(quantizer, coded, std::span(&key, 1)), decoded));
  });
  kernels::use_target(before);
}

// Quantizing in pieces gives the same codes, whatever the pieces and the block size.
TEST(BlockQuantizer, PiecesMakeTheWhole) {
  const auto values = normal_floats(3001, 4);
  const RandomKey key = random_key({.seed = 2});
  for (const std::size_t block : {1u, 2u, 31u, 512u, 3000u, 3001u, 5000u}) {
    const BlockQuantizer quantizer{{values.size(), block}, 3};
    const Coded whole = quantized(quantizer, values, key);
    for (const std::size_t piece : {1u, 7u, 64u, 1000u}) {
      Coded pieces{Floats(quantizer.blocks()), std::vector<std::uint32_t>(values.size())};
      for (std::size_t first = 0; first < values.size(); first += piece) {
        const std::size_t count = std::min(piece, values.size() - first);
        quantizer.measure_from(values, first, count, 0, pieces.scales);
        quantizer.quantize(std::span(values).subspan(first, count), first, pieces.scales, key,
                           std::span(pieces.codes).subspan(first, count));
      }
      ASSERT_EQ(pieces.scales, whole.scales);
      ASSERT_EQ(pieces.codes, whole.codes);
    }
  }
}

TEST(BlockQuantizer, ErrorsAreAtMostHalfAStepSizeAtEveryMagnitude) {
  const RandomKey key = random_key({.seed = 2});
  const auto shape = normal_floats(1009, 5);
  for (const float magnitude : {1e-30f, 1e-20f, 1e-3f, 1.0f, 1e20f, 1e37f}) {
    for (const std::uint32_t levels_per_side : {1u, 3u, 127u}) {
      const BlockQuantizer quantizer{{shape.size(), 64}, levels_per_side};
      Floats values = shape;
      for (auto& value : values) value *= magnitude;
      const Coded coded = quantized(quantizer, values, key);
      const auto decoded = dequantized(quantizer, coded, std::span(&key, 1));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double step_size = quantizer.step_size(coded.scales[i / 64]);
        ASSERT_LE(coded.codes[i], 2 * levels_per_side);
        ASSERT_LE(std::abs(static_cast<double>(decoded[i]) - values[i]), 0.5001 * step_size)
            << magnitude << ' ' << levels_per_side;
      }
    }
  }
}

TEST(BlockQuantizer, ZerosStayZerosAndDenormalsStaySmall) {
  const BlockQuantizer quantizer{{100, 10}, 3};
  const RandomKey key = random_key({});
  EXPECT_EQ(dequantized(quantizer, quantized(quantizer, Floats(100), key), std::span(&key, 1)),
            Floats(100));
  const Floats tiny(100, 1e-42f);
  for (const float value :
       dequantized(quantizer, quantized(quantizer, tiny, key), std::span(&key, 1))) {
    EXPECT_LT(std::abs(value), 1e-29f);
  }
}

TEST(BlockQuantizer, TheLargestFloatsStayFinite) {
  const RandomKey key = random_key({});
  for (const std::uint32_t levels_per_side : {1u, 3u, 127u}) {
    const BlockQuantizer quantizer{{1000, 100}, levels_per_side};
    Floats values(1000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? kMaxFloat : -kMaxFloat;
    const Coded coded = quantized(quantizer, values, key);
    const auto decoded = dequantized(quantizer, coded, std::span(&key, 1));
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(std::isfinite(decoded[i]));
      ASSERT_LE(coded.codes[i], 2 * levels_per_side);
      ASSERT_EQ(std::signbit(decoded[i]), std::signbit(values[i]));
    }
  }
}

TEST(BlockQuantizer, ClippingLowersTheScaleAndKeepsTheRest) {
  const BlockQuantizer quantizer{{1000, 500}, 3};
  Floats values = normal_floats(1000, 6);
  values[3] = 50;
  values[700] = -80;
  Floats scales(2);
  quantizer.measure(values, 0, 2.5, scales);
  EXPECT_LT(scales[0], 10);
  EXPECT_LT(scales[1], 10);
  Floats rest = values;
  quantizer.keep_clipped(rest, scales);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float limit = scales[i / 500];
    EXPECT_EQ(rest[i], values[i] - std::clamp(values[i], -limit, limit));
  }
  EXPECT_GT(rest[3], 40);
  EXPECT_LT(rest[700], -70);
}

}  // namespace
}  // namespace thinreduce::block_quantizer_test
