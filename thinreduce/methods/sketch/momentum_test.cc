#include "thinreduce/methods/sketch/momentum.h"

#include <gtest/gtest.h>

#include "tests/test_data.h"
#include "thinreduce/error.h"

namespace thinreduce::kernels::momentum_test {
namespace {

TEST(Momentum, EqualsTheReferenceOnEveryTarget) {
  on_every_target([] {
    at_every_size([](std::size_t size, std::size_t offset) {
      auto velocity = mixed_floats(size, 1);
      auto sum = mixed_floats(size, 2);
      const auto gradient = mixed_floats(size, 3);
      Guarded<float> out(std::span<const float>(velocity), offset);
      Guarded<float> total(std::span<const float>(sum), 2 * offset);
      take_in({out.span(), total.span()}, gradient, 0.9f);
      reference::take_in({velocity, sum}, gradient, 0.9f);
      EXPECT_TRUE(same_bits<float>(out.span(), velocity));
      EXPECT_TRUE(same_bits<float>(total.span(), sum));
      EXPECT_TRUE(out.intact());
      EXPECT_TRUE(total.intact());
    });
  });
}

TEST(Momentum, KnownValues) {
  std::vector<float> velocity(35, 4.0f), sum(35, 1.0f);
  take_in({velocity, sum}, std::vector<float>(35, 3.0f), 0.5f);
  EXPECT_EQ(velocity, std::vector<float>(35, 5.0f));
  EXPECT_EQ(sum, std::vector<float>(35, 6.0f));
  EXPECT_THROW(take_in({velocity, sum}, std::vector<float>(34), 0.5f), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::kernels::momentum_test
