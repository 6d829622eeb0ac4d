#include "thinreduce/kernels/no_libhwy/cpu_targets.h"

#include <gtest/gtest.h>

#include "hwy/highway.h"

namespace thinreduce::kernels::cpu_targets_test {
namespace {

TEST(CpuTargets, AreThoseOfHighway) {
  constexpr std::int64_t kOneLane = HWY_SCALAR | HWY_EMU128;
  EXPECT_EQ(cpu_targets() & HWY_TARGETS & ~kOneLane,
            hwy::SupportedTargets() & HWY_TARGETS & ~kOneLane);
}

}  // namespace
}  // namespace thinreduce::kernels::cpu_targets_test
