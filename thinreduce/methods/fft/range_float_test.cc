#include "thinreduce/methods/fft/range_float.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/test_data.h"
#include "thinreduce/error.h"

namespace thinreduce::kernels::range_float_test {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();

// Symmetric, lopsided, one-sided, tiny and huge ranges.
constexpr ValueRange kRanges[] = {{-1, 1},           {-0.5f, 3.75f},   {-100, 0.001f},
                                  {-1e-9f, 1e9f},    {0, 1},           {-7.3f, 0},
                                  {-1e-37f, 3e-38f}, {-kMax, kMax},    {-1e-30f, kMax},
                                  {-1, 1.999f},      {-1e-44f, 1e-44f}};

// Calls `check` for every number of bits and mantissa, and all ranges.
template <typename Check>
void for_formats(Check&& check) {
  for (int bits = kMinRangeBits; bits <= kMaxRangeBits; ++bits) {
    for (int mantissa = 0; mantissa < bits; ++mantissa) {
      for (const auto range : kRanges) {
        SCOPED_TRACE(testing::Message() << bits << " bits, mantissa " << mantissa << ", "
                                        << range.min << " to " << range.max);
        check(RangeFloat::covering(range, bits, mantissa), range);
      }
    }
  }
}

TEST(RangeFloat, EveryCodeComesBackAndTheyAscend) {
  for_formats([](const RangeFloat& format, ValueRange) {
    ASSERT_TRUE(format.valid());
    ASSERT_LT(format.last_code(), 1u << format.bits);
    EXPECT_EQ(format.decode(0), 0.0f);
    float before = 0;
    for (std::uint32_t code = 1; code <= format.last_code(); ++code) {
      const float value = format.decode(static_cast<std::uint16_t>(code));
      if (code == format.positive + 1) before = 0;
      ASSERT_TRUE(std::isnormal(value));
      ASSERT_EQ(value > 0, code <= format.positive);
      ASSERT_GT(std::abs(value), std::abs(before)) << code;
      ASSERT_EQ(format.encode(value), code);
      before = value;
    }
  });
}

// All codes are used, unless the range has fewer rungs above the smallest normal float.
TEST(RangeFloat, NoCodeIsWasted) {
  for_formats([](const RangeFloat& format, ValueRange) {
    const std::uint32_t all = (1u << format.bits) - 1;
    const bool at_the_bottom = format.base == 1u << format.mantissa;
    EXPECT_TRUE(at_the_bottom || format.last_code() + 1 >= all)
        << format.last_code() << " of " << all;
  });
}

TEST(RangeFloat, ErrorsAreBounded) {
  std::mt19937 random(1);
  for_formats([&](const RangeFloat& format, ValueRange range) {
    const double eps = format.eps();
    std::uniform_real_distribution<double> uniform(0, 1);
    for (int i = 0; i < 60; ++i) {
      // Half of them over the whole range, half over many octaves below its ends.
      const double end = i % 2 == 0 ? range.min : range.max;
      const double part = i % 4 < 2 ? uniform(random) : std::exp2(-uniform(random) * 40);
      const auto value = static_cast<float>(end * part);
      const double error =
          std::abs(value - static_cast<double>(format.decode(format.encode(value))));
      if (std::abs(value) < eps) {
        // Halves of the smallest floats are rounded themselves.
        ASSERT_LE(error, eps / 2 + 1e-45) << value;
      } else if (std::abs(value) < 3.3e38) {  // near the largest float the next rung is infinite
        ASSERT_LE(error, std::abs(value) * std::exp2(-(format.mantissa + 1))) << value;
      }
    }
  });
}

// The figures of the paper's formula: [-1, 1] with 8 bits, 3 of them mantissa.
TEST(RangeFloat, KnownValues) {
  const auto format = RangeFloat::covering({-1, 1}, 8, 3);
  EXPECT_EQ(format.base, (127u << 3) + 1 - 127);
  EXPECT_EQ(format.positive, 127u);
  EXPECT_EQ(format.negative, 127u);
  EXPECT_EQ(format.decode(127), 1.0f);
  EXPECT_EQ(format.decode(126), 0.9375f);
  EXPECT_EQ(format.decode(254), -1.0f);
  EXPECT_EQ(format.eps(), 0x1.4p-16f);
  EXPECT_EQ(format.encode(format.eps() / 2), 1);
  EXPECT_EQ(format.encode(std::nextafter(format.eps() / 2, 0.0f)), 0);
  EXPECT_EQ(format.encode(-format.eps() / 2), 128);
  EXPECT_EQ(format.encode(0.95f), 126);
  EXPECT_EQ(format.encode(5.0f), 127);  // beyond the range: its end
  EXPECT_EQ(format.encode(-5.0f), 254);
  EXPECT_EQ(format.encode(0.0f), 0);
  EXPECT_EQ(format.encode(-0.0f), 0);
}

TEST(RangeFloat, LopsidedRangesGiveTheLongerSideMore) {
  const auto format = RangeFloat::covering({-0.01f, 1}, 8, 3);
  EXPECT_GT(format.positive, format.negative + 40);
  EXPECT_LT(format.eps(), RangeFloat::covering({-1, 1}, 8, 3).eps());
  const auto one_sided = RangeFloat::covering({0, 1}, 8, 3);
  EXPECT_EQ(one_sided.positive, 255u);
  EXPECT_EQ(one_sided.encode(-1.0f), 0);
  const auto nearly = RangeFloat::covering({-1e-30f, 1}, 8, 3);
  EXPECT_EQ(nearly.positive, 254u);
  EXPECT_EQ(nearly.negative, 1u);
}

// No other mantissa has a smaller error on the sample.
TEST(RangeFloat, FittingIsTheBest) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const int bits : {4, 6, 8, 10, 16}) {
    for (const float tail : {0.0f, 2.0f, 6.0f}) {
      std::vector<float> sample(1000);
      for (auto& value : sample) value = normal(random) * std::exp(tail * normal(random));
      const auto range = range_of(sample);
      const auto error = [&](const RangeFloat& format) {
        double sum = 0;
        for (const float value : sample) {
          const double difference =
              value - static_cast<double>(format.decode(format.encode(value)));
          sum += difference * difference;
        }
        return sum;
      };
      const double best = error(RangeFloat::fitting(range, bits, sample));
      for (int mantissa = 0; mantissa < bits; ++mantissa) {
        EXPECT_LE(best, error(RangeFloat::covering(range, bits, mantissa)));
      }
    }
  }
}

TEST(RangeFloat, ForeignFormatsAreChecked) {
  const auto good = RangeFloat::covering({-1, 1}, 10, 5);
  EXPECT_TRUE(good.valid());
  const auto bad = [&](auto&& change) {
    RangeFloat format = good;
    change(format);
    return !format.valid();
  };
  EXPECT_TRUE(bad([](auto& f) { f.bits = 3; }));
  EXPECT_TRUE(bad([](auto& f) { f.bits = 17; }));
  EXPECT_TRUE(bad([](auto& f) { f.mantissa = 16; }));
  EXPECT_TRUE(bad([](auto& f) { f.mantissa = -1; }));
  EXPECT_TRUE(bad([](auto& f) { f.base = 0; }));
  EXPECT_TRUE(bad([](auto& f) { f.base = 31; }));
  EXPECT_TRUE(bad([](auto& f) { f.base = ~0u; }));
  EXPECT_TRUE(bad([](auto& f) { f.positive = 1024; }));
  EXPECT_TRUE(bad([](auto& f) { f.negative = ~0u; }));
  // 255 << 5 would be infinity.
  EXPECT_TRUE(bad([](auto& f) { f.base = (255u << 5) - f.positive + 1; }));
  EXPECT_FALSE(bad([](auto& f) { f.base = (255u << 5) - f.positive; }));
}

TEST(RangeFloat, KernelsEqualTheReferenceOnEveryTarget) {
  on_every_target([] {
    at_every_size([](std::size_t size, std::size_t offset) {
      auto values = mixed_floats(size, 3);
      Guarded<float> in(std::span<const float>(values), offset);
      const auto range = range_of(in.span());
      const auto expected_range = reference::range_of(values);
      EXPECT_EQ(range.min, expected_range.min);
      EXPECT_EQ(range.max, expected_range.max);
      for (const auto& format :
           {RangeFloat::covering(range, 10, 5), RangeFloat::covering({-1, 2}, 16, 9),
            RangeFloat::covering({0, 1}, 4, 1), RangeFloat::covering({-3, 0}, 8, 3)}) {
        Guarded<std::uint16_t> codes(size, offset);
        std::vector<std::uint16_t> expected(size);
        quantize(format, in.span(), codes.span());
        reference::quantize(format, values, expected);
        EXPECT_TRUE(same_bits<std::uint16_t>(codes.span(), expected));
        Guarded<float> out(size, offset);
        std::vector<float> back(size);
        dequantize(format, codes.span(), out.span());
        reference::dequantize(format, expected, back);
        EXPECT_TRUE(same_bits<float>(out.span(), back));
        EXPECT_TRUE(codes.intact() && out.intact() && in.intact());
      }
    });
  });
}

TEST(RangeFloat, WrongUseIsABug) {
  EXPECT_THROW((void)RangeFloat::covering({-1, 1}, 3, 1), BrokenInvariant);
  EXPECT_THROW((void)RangeFloat::covering({-1, 1}, 17, 1), BrokenInvariant);
  EXPECT_THROW((void)RangeFloat::covering({-1, 1}, 8, 16), BrokenInvariant);
  std::vector<float> five(5);
  std::vector<std::uint16_t> six(6);
  EXPECT_THROW(quantize(RangeFloat::covering({-1, 1}, 8, 3), five, six), BrokenInvariant);
  EXPECT_THROW(dequantize(RangeFloat::covering({-1, 1}, 8, 3), six, five), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::kernels::range_float_test
