#include "thinreduce/methods/fft/theta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace thinreduce::theta_test {
namespace {

using Kind = ThetaSchedule::Kind;

TEST(Theta, SchedulesStartEndAndFall) {
  for (const auto kind : {Kind::linear, Kind::cosine, Kind::step}) {
    const ThetaSchedule schedule{kind, 0.9, 0.1, 1000};
    EXPECT_DOUBLE_EQ(schedule.at(0), 0.9);
    EXPECT_DOUBLE_EQ(schedule.at(1000), 0.1);
    EXPECT_DOUBLE_EQ(schedule.at(123456789), 0.1);
    for (std::uint64_t step = 1; step <= 1000; ++step) {
      ASSERT_LE(schedule.at(step), schedule.at(step - 1)) << step;
    }
  }
}

TEST(Theta, KnownValues) {
  EXPECT_DOUBLE_EQ((ThetaSchedule{Kind::constant, 0.7, 0.1, 10}.at(99)), 0.7);
  EXPECT_DOUBLE_EQ((ThetaSchedule{Kind::linear, 0.8, 0.4, 100}.at(25)), 0.7);
  EXPECT_DOUBLE_EQ((ThetaSchedule{Kind::step, 0.8, 0.4, 100}.at(49)), 0.7);
  EXPECT_DOUBLE_EQ((ThetaSchedule{Kind::step, 0.8, 0.4, 100}.at(50)), 0.6);
  for (const std::uint64_t step : {0u, 10u, 50u, 77u}) {
    const double way = static_cast<double>(step) / 100;
    EXPECT_NEAR((ThetaSchedule{Kind::cosine, 0.8, 0.4, 100}.at(step)),
                0.4 + 0.2 * (1 + std::cos(std::numbers::pi * way)), 1e-5);
  }
  EXPECT_EQ(ThetaSchedule::kind_named("cosine"), Kind::cosine);
  EXPECT_EQ(ThetaSchedule::kind_named("step"), Kind::step);
  EXPECT_EQ(ThetaSchedule::kind_named("linear"), Kind::linear);
  EXPECT_EQ(ThetaSchedule::kind_named("constant"), Kind::constant);
}

TEST(Theta, ControlLowersWhenEnergyIsMissingAndReturns) {
  ThetaControl control(0.85, 0.5);
  control.update(0.52);
  EXPECT_EQ(control.theta(), 0.85);
  control.update(0.49);
  EXPECT_NEAR(control.theta(), 1 - 0.15 * 1.25, 1e-12);
  for (int i = 0; i < 100; ++i) control.update(0);
  EXPECT_EQ(control.theta(), 0);
  control.update(0.52);  // enough, not more
  EXPECT_EQ(control.theta(), 0);
  for (int i = 0; i < 1000; ++i) control.update(0.9);
  EXPECT_EQ(control.theta(), 0.85);
}

}  // namespace
}  // namespace thinreduce::theta_test
