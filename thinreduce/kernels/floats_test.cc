#include "thinreduce/kernels/floats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/test_data.h"
#include "thinreduce/error.h"

namespace thinreduce::kernels::floats_test {
namespace {

// Runs a kernel and its reference on the same data at every size and offset: same bits, guards
// intact.
template <typename Kernel, typename Reference>
void expect_same(Kernel&& kernel, Reference&& reference) {
  at_every_size([&](std::size_t size, std::size_t offset) {
    const auto first = mixed_floats(size, 1);
    const auto second = mixed_floats(size, 2);
    Guarded<float> out(std::span<const float>(first), offset);
    Guarded<float> in(std::span<const float>(second), 2 * offset);
    kernel(out.span(), in.span());
    auto expected = first;
    reference(std::span<float>(expected), std::span<const float>(second));
    EXPECT_TRUE(same_bits<float>(out.span(), expected));
    EXPECT_TRUE(same_bits<float>(in.span(), second));
    EXPECT_TRUE(out.intact());
    EXPECT_TRUE(in.intact());
  });
}

TEST(Floats, EqualTheReferenceOnEveryTarget) {
  on_every_target([] {
    expect_same([](auto out, auto in) { add(out, in); },
                [](auto out, auto in) { reference::add(out, in); });
    expect_same([](auto out, auto in) { add_scale(out, in, 1 / 3.0f); },
                [](auto out, auto in) { reference::add_scale(out, in, 1 / 3.0f); });
    expect_same([](auto out, auto) { scale(out, 1 / 7.0f); },
                [](auto out, auto) { reference::scale(out, 1 / 7.0f); });
    expect_same([](auto out, auto in) { maximum(out, in); },
                [](auto out, auto in) { reference::maximum(out, in); });
  });
}

TEST(Floats, SquareSumEqualsTheReferenceOnEveryTarget) {
  on_every_target([] {
    at_every_size([](std::size_t size, std::size_t offset) {
      const auto values = mixed_floats(size, 1);
      Guarded<float> guarded(std::span<const float>(values), offset);
      const double sum = square_sum(guarded.span());
      const double expected = reference::square_sum(values);
      EXPECT_TRUE(same_bits<double>(std::span(&sum, 1), std::span(&expected, 1))) << size;
    });
  });
}

TEST(Floats, SquareSumIsTheSumOfSquares) {
  EXPECT_EQ(square_sum({}), 0);
  EXPECT_EQ(square_sum(std::vector<float>{3, -4}), 25);
  EXPECT_EQ(square_sum(std::vector<float>(1001, 2)), 4004);
}

TEST(Floats, AddExchangeEqualsTheReferenceOnEveryTarget) {
  on_every_target([] {
    at_every_size([](std::size_t size, std::size_t offset) {
      auto sum = mixed_floats(size, 1);
      auto in = mixed_floats(size, 2);
      Guarded<float> found_sum(std::span<const float>(sum), offset);
      Guarded<float> found_in(std::span<const float>(in), 2 * offset);
      const bool finite = add_exchange(found_sum.span(), found_in.span());
      EXPECT_EQ(finite, reference::add_exchange(sum, in));
      EXPECT_TRUE(same_bits<float>(found_sum.span(), sum));
      EXPECT_TRUE(same_bits<float>(found_in.span(), in));
      EXPECT_TRUE(found_sum.intact());
      EXPECT_TRUE(found_in.intact());
    });
  });
}

TEST(Floats, AddExchangeFindsInfiniteSumsAtEveryPlace) {
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  on_every_target([&] {
    for (std::size_t at = 0; at < 70; ++at) {
      for (const float bad : {kMax, -kNan}) {
        std::vector<float> sum(70, kMax), in(70, -1.0f);
        EXPECT_TRUE(add_exchange(sum, in));
        EXPECT_EQ(in, std::vector<float>(70, kMax));
        std::fill(in.begin(), in.end(), 1.0f);
        in[at] = bad;
        EXPECT_FALSE(add_exchange(sum, in));
      }
    }
  });
}

TEST(Floats, KnownValues) {
  std::vector<float> sum(35, 1.5f);
  const std::vector<float> in(35, -4.0f);
  add(sum, in);
  EXPECT_EQ(sum, std::vector<float>(35, -2.5f));
  add_scale(sum, in, 0.5f);
  EXPECT_EQ(sum, std::vector<float>(35, -3.25f));
  scale(sum, 4.0f);
  EXPECT_EQ(sum, std::vector<float>(35, -13.0f));
  maximum(sum, in);
  EXPECT_EQ(sum, in);
  maximum(sum, std::vector<float>(35, -5.0f));
  EXPECT_EQ(sum, in);
}

TEST(Floats, MaximumOfZerosKeepsTheFirst) {
  std::vector<float> most(33, -0.0f);
  maximum(most, std::vector<float>(33, 0.0f));
  for (const float value : most) EXPECT_TRUE(std::signbit(value));
}

TEST(Floats, LargestMagnitudeIgnoresNanOnEveryTarget) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  on_every_target([&] {
    EXPECT_EQ(largest_magnitude({}), 0);
    at_every_size([&](std::size_t size, std::size_t offset) {
      const auto values = mixed_floats(size, 6);
      Guarded<float> in(std::span<const float>(values), offset);
      float expected = 0;
      for (const float value : values) expected = std::max(expected, std::abs(value));
      EXPECT_EQ(largest_magnitude(in.span()), expected);
      EXPECT_EQ(reference::largest_magnitude(in.span()), expected);
      if (size < 2) return;
      for (const std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
        std::fill(in.span().begin(), in.span().end(), kNan);
        EXPECT_EQ(largest_magnitude(in.span()), 0);
        in.span()[at] = -2.5f;
        EXPECT_EQ(largest_magnitude(in.span()), 2.5f);
        in.span()[size - 1 - at / 2] = -kInf;
        EXPECT_EQ(largest_magnitude(in.span()), kInf);
      }
    });
  });
}

TEST(Floats, FirstNonfiniteAtEveryPlace) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  on_every_target([&] {
    at_every_size([&](std::size_t size, std::size_t offset) {
      auto values = mixed_floats(size, 3);
      for (auto& value : values) value = std::isfinite(value) ? value : 1.0f;
      Guarded<float> run(std::span<const float>(values), offset);
      EXPECT_EQ(first_nonfinite(run.span()), size);
      if (size > 1) {  // the largest finite values are finite
        run.span()[0] = std::numeric_limits<float>::max();
        run.span()[1] = std::numeric_limits<float>::lowest();
        EXPECT_EQ(first_nonfinite(run.span()), size);
      }
      const std::size_t step = size < 2000 ? 1 : 997;
      for (std::size_t i = 0; i < size; i += step) {
        for (const float bad : {kInf, -kInf, kNan, -kNan}) {
          const float old = run.span()[i];
          run.span()[i] = bad;
          run.span()[size - 1] = bad;  // a later one must not win
          EXPECT_EQ(first_nonfinite(run.span()), i);
          run.span()[size - 1] = 1.0f;
          run.span()[i] = old;
        }
      }
    });
  });
}

TEST(Floats, LengthsThatDifferAreABug) {
  std::vector<float> five(5), six(6);
  EXPECT_THROW(add(five, six), BrokenInvariant);
  EXPECT_THROW((void)add_exchange(five, six), BrokenInvariant);
  EXPECT_THROW(add_scale(five, six, 1), BrokenInvariant);
  EXPECT_THROW(maximum(six, five), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::kernels::floats_test
