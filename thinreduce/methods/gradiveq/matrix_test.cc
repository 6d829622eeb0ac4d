#include "thinreduce/methods/gradiveq/matrix.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/random_data.h"
#include "tests/test_data.h"

namespace thinreduce::kernels::matrix_test {
namespace {

struct Case {
  std::size_t rows, columns, vectors;
};
constexpr Case kCases[] = {{1, 1, 1},    {3, 5, 2},    {256, 32, 9}, {32, 256, 9},
                           {7, 16, 4},   {17, 33, 13}, {0, 16, 3},   {64, 48, 0},
                           {31, 100, 8}, {200, 25, 5}, {1, 31, 1},   {9, 144, 17}};

// A matrix with zeros in the padding.
std::vector<float> padded(const Case& c, unsigned seed) {
  const auto stride = padded_columns(c.columns);
  auto values = normal_floats(c.rows * stride, seed);
  for (std::size_t row = 0; row < c.rows; ++row) {
    for (std::size_t j = c.columns; j < stride; ++j) values[row * stride + j] = 0;
  }
  return values;
}

TEST(Matrix, MultiplyIsTheProduct) {
  for (const auto& c : kCases) {
    const auto stride = padded_columns(c.columns);
    const auto values = padded(c, 1);
    const auto in = normal_floats(c.vectors * c.rows, 2);
    std::vector<float> out(c.vectors * c.columns, 7);
    multiply({values, c.rows, c.columns}, in, out);
    for (std::size_t v = 0; v < c.vectors; ++v) {
      for (std::size_t j = 0; j < c.columns; ++j) {
        double sum = 0;
        double magnitude = 0;
        for (std::size_t row = 0; row < c.rows; ++row) {
          const double product = static_cast<double>(in[v * c.rows + row]) *
                                 static_cast<double>(values[row * stride + j]);
          sum += product;
          magnitude += std::abs(product);
        }
        // One rounding of 2^-24 a product and a sum.
        const double bound = magnitude * static_cast<double>(c.rows + 1) * 0x1p-24;
        ASSERT_NEAR(out[v * c.columns + j], sum, bound + 1e-30);
      }
    }
  }
}

TEST(Matrix, SameBitsOnEveryTarget) {
  for (const auto& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.rows << "x" << c.columns << ", " << c.vectors);
    for (const auto offset : kOffsets) {
      Guarded<float> values(std::span<const float>(padded(c, 3)), offset);
      Guarded<float> in(std::span<const float>(normal_floats(c.vectors * c.rows, 4)), offset);
      std::vector<float> expected(c.vectors * c.columns);
      reference::multiply({values.span(), c.rows, c.columns}, in.span(), expected);
      on_every_target([&] {
        Guarded<float> out(c.vectors * c.columns, offset);
        multiply({values.span(), c.rows, c.columns}, in.span(), out.span());
        EXPECT_TRUE(same_bits<float>(out.span(), expected));
        EXPECT_TRUE(out.intact());
      });
    }
  }
}

TEST(Matrix, AddMultipleIsTheSameBitsOnEveryTarget) {
  at_every_size([](std::size_t size, std::size_t offset) {
    Guarded<float> a(std::span<const float>(mixed_floats(size, 5)), offset);
    Guarded<float> b(std::span<const float>(normal_floats(size, 6)), offset);
    std::vector<float> expected(size);
    reference::add_multiple(a.span(), b.span(), 0.3f, expected, 0.7f);
    on_every_target([&] {
      Guarded<float> out(size, offset);
      add_multiple(a.span(), b.span(), 0.3f, out.span(), 0.7f);
      EXPECT_TRUE(same_bits<float>(out.span(), expected));
      // The result may replace an operand.
      add_multiple(a.span(), b.span(), 0.3f, b.span(), 0.7f);
      EXPECT_TRUE(same_bits<float>(b.span(), expected));
      EXPECT_TRUE(out.intact() && b.intact());
      std::ranges::copy(normal_floats(size, 6), b.span().begin());
    });
  });
}

TEST(Matrix, DeliverIsTheSameBitsOnEveryTarget) {
  at_every_size([](std::size_t size, std::size_t offset) {
    const auto gradient = mixed_floats(size, 7);
    const auto residual = normal_floats(size, 8);
    Guarded<float> rebuilt(std::span<const float>(normal_floats(size, 9)), offset);
    Guarded<float> mean(std::span<const float>(normal_floats(size, 10)), offset);
    const Delivery delivery{rebuilt.span(), mean.span(), 0.3f, 0.7f};
    for (const bool feedback : {true, false}) {
      std::vector<float> expected = gradient;
      std::vector<float> expected_kept = residual;
      reference::deliver(delivery, feedback ? std::span(expected_kept) : std::span<float>{},
                         expected);
      on_every_target([&] {
        Guarded<float> values(std::span<const float>(gradient), offset);
        Guarded<float> kept(std::span<const float>(residual), offset);
        deliver(delivery, feedback ? kept.span() : std::span<float>{}, values.span());
        EXPECT_TRUE(same_bits<float>(values.span(), expected));
        EXPECT_TRUE(same_bits<float>(kept.span(), expected_kept));
        EXPECT_TRUE(values.intact() && kept.intact());
      });
    }
  });
}

// What a product prefetches must change nothing, also where it ends before the product does.
TEST(Matrix, FetchingAheadChangesNoBit) {
  for (const auto& c : kCases) {
    const auto values = padded(c, 1);
    const auto in = normal_floats(c.vectors * c.rows, 2);
    const auto next = normal_floats(1000, 3);
    std::vector<float> expected(c.vectors * c.columns);
    multiply({values, c.rows, c.columns}, in, expected);
    const std::span<const float> runs[] = {std::span(next).first(70), std::span(next).last(70)};
    std::vector<float> out(expected.size());
    multiply({values, c.rows, c.columns}, in, out, runs);
    EXPECT_TRUE(same_bits<float>(out, expected));
  }
}

}  // namespace
}  // namespace thinreduce::kernels::matrix_test
