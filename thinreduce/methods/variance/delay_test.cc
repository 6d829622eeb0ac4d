#include "thinreduce/methods/variance/delay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/test_data.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce::kernels::delay_test {
namespace {

using Floats = std::vector<float>;
using Indices = std::vector<std::uint32_t>;

// Second moments and squares: as mixed as gradients, but none is negative.
Floats mixed_squares(std::size_t size, unsigned seed) {
  auto values = mixed_floats(size, seed);
  for (auto& value : values) value = std::abs(value) * 0.5F;
  return values;
}

TEST(Delay, EqualsTheReferenceOnEveryTarget) {
  on_every_target([] {
    at_every_size([](std::size_t size, std::size_t offset) {
      const auto gradient = mixed_floats(size, 1);
      const auto moment = mixed_squares(size, 2);
      const auto sums = mixed_floats(size, 3);
      const auto squares = mixed_squares(size, 4);
      for (const DelayRule rule : {DelayRule{}, DelayRule{.alpha = 0, .zeta = 0},
                                   DelayRule{.alpha = 2, .tau = 0.5F, .square_weight = 0.125F}}) {
        for (const bool given : {true, false}) {
          Guarded<float> r(std::span<const float>(sums), offset);
          Guarded<float> v(std::span<const float>(squares), offset);
          Guarded<std::uint32_t> indices(size, offset);
          Guarded<float> found(size, offset);
          Floats expected_r = sums, expected_v = squares, expected_found(size);
          Indices expected_indices(size);
          const auto moments = given ? std::span<const float>(moment) : std::span<const float>();
          const std::size_t count = delay({gradient, moments, r.span(), v.span(), 77}, rule,
                                          {indices.span(), found.span()});
          ASSERT_EQ(count, reference::delay({gradient, moments, expected_r, expected_v, 77}, rule,
                                            {expected_indices, expected_found}));
          EXPECT_TRUE(same_bits<float>(r.span(), expected_r));
          EXPECT_TRUE(same_bits<float>(v.span(), expected_v));
          EXPECT_TRUE(same_bits<std::uint32_t>(indices.span().first(count),
                                               std::span(expected_indices).first(count)));
          EXPECT_TRUE(
              same_bits<float>(found.span().first(count), std::span(expected_found).first(count)));
          EXPECT_TRUE(r.intact() && v.intact() && indices.intact() && found.intact());
        }
      }
    });
  });
}

TEST(Delay, KnownValues) {
  const Floats gradient = {3, 1, -2, 0, 1, -1};
  const Floats moment = {4, 4, 1, 0, 0, 1};
  Floats sums = {0, 1, -1, 0, 0, 1};
  Floats squares = {0, 0, 1, 0, 0, 0};
  Indices indices(6);
  Floats values(6);
  // r = 3, 2, -3, 0, 1, 0 and v = 4, 4, 2, 0, 0, 1.
  ASSERT_EQ(
      delay({gradient, moment, sums, squares, 100}, {.alpha = 1, .zeta = 0.5F}, {indices, values}),
      3U);
  indices.resize(3);
  values.resize(3);
  EXPECT_EQ(indices, (Indices{100, 102, 104}));  // 4 = 1 * 4 is not above
  EXPECT_EQ(values, (Floats{3, -3, 1}));
  EXPECT_EQ(sums, (Floats{3, 2, -3, 0, 1, 0}));
  EXPECT_EQ(squares, (Floats{4, 2, 2, 0, 0, 0.5F}));
}

// v would be infinite, and nothing would ever be above it.
TEST(Delay, HugeSquaresDoNotHideASumThatOverflows) {
  const Floats gradient(40, 3e38F);
  const Floats moment(40, 3e38F);
  Floats sums(40, 3e38F), squares(40, 3e38F), values(40);
  Indices indices(40);
  EXPECT_EQ(delay({gradient, moment, sums, squares, 0}, {.alpha = 100}, {indices, values}), 40U);
  EXPECT_EQ(values[0], std::numeric_limits<float>::infinity());
}

TEST(FirstNoSquare, FindsEveryKindAnywhereOnEveryTarget) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  on_every_target([] {
    for (const std::size_t size : {0, 1, 5, 64, 77, 300}) {
      Floats values(size, 1.0F);
      if (size > 2) values[1] = -0.0F;
      ASSERT_EQ(first_no_square(values), size);
      for (const float bad : {-1e-45F, -3.0F, kInfinity, -kInfinity, std::nanf("")}) {
        for (std::size_t at = 0; at < size; ++at) {
          const float good = std::exchange(values[at], bad);
          ASSERT_EQ(first_no_square(values), at) << bad;
          values[at] = good;
        }
      }
    }
  });
}

}  // namespace
}  // namespace thinreduce::kernels::delay_test
