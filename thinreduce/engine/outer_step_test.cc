#include "thinreduce/engine/outer_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/ranks.h"
#include "thinreduce/error.h"

namespace thinreduce::outer_step_test {
namespace {

TEST(OuterStep, TextComesBack) {
  EXPECT_EQ(OuterStep::parse("nesterov").to_string(), "nesterov,lr=0.7,momentum=0.9");
  EXPECT_EQ(OuterStep::parse("nesterov,momentum=0.5,lr=1e-1").to_string(),
            "nesterov,lr=0.1,momentum=0.5");
  EXPECT_EQ(OuterStep::parse("sgd").to_string(), "sgd,lr=1,momentum=0");
  EXPECT_EQ(OuterStep::parse("sgd,lr=0.25,momentum=0.9").to_string(), "sgd,lr=0.25,momentum=0.9");
}

TEST(OuterStep, WrongTextNamesTheWord) {
  const auto text = [](const char* given) {
    return thrown_text(ErrorCode::bad_input, [&] { static_cast<void>(OuterStep::parse(given)); });
  };
  using testing::HasSubstr;
  EXPECT_THAT(text(""), HasSubstr("there is no outer optimizer ''"));
  EXPECT_THAT(text("Nesterov"), HasSubstr("there is no outer optimizer 'Nesterov'"));
  EXPECT_THAT(text("sgd,lr"), HasSubstr("'lr' is no setting"));
  EXPECT_THAT(text("sgd,rate=1"), HasSubstr("'rate=1' is no setting"));
  EXPECT_THAT(text("sgd,lr=1,lr=1"), HasSubstr("lr is given twice"));
  EXPECT_THAT(text("sgd,lr=1x"), HasSubstr("lr must be a number, got '1x'"));
  EXPECT_THAT(text("sgd,lr=nan"), HasSubstr("lr must be a number, got 'nan'"));
  EXPECT_THAT(text("sgd,lr=1e99"), HasSubstr("lr must be a number, got '1e99'"));
  EXPECT_THAT(text("sgd,lr=0"), HasSubstr("lr must be above 0"));
  EXPECT_THAT(text("sgd,momentum=1"), HasSubstr("below 1, got 1"));
  EXPECT_THAT(text("sgd,momentum=-0.1"), HasSubstr("below 1, got -0.1"));
}

// The formulas of torch.optim.SGD, in double.
TEST(OuterStep, FollowsTheFormulas) {
  for (const char* text :
       {"sgd,lr=0.3", "sgd,lr=0.3,momentum=0.8", "nesterov,lr=0.3,momentum=0.8"}) {
    const OuterStep step = OuterStep::parse(text);
    std::vector<float> anchor = {1.0F, -2.0F, 0.5F};
    std::vector<float> velocity(3);
    std::vector<double> expected(anchor.begin(), anchor.end());
    std::vector<double> buffer(3);
    for (int round = 1; round <= 5; ++round) {
      std::vector<float> mean;
      for (std::size_t i = 0; i < 3; ++i) {
        mean.push_back(0.125F * static_cast<float>(round) * static_cast<float>(i + 1));
        const auto g = static_cast<double>(mean[i]);
        buffer[i] = 0.8 * buffer[i] + g;
        if (step.momentum == 0)
          expected[i] -= 0.3 * g;
        else
          expected[i] -=
              0.3 * (step.kind == OuterStep::Kind::sgd ? buffer[i] : g + 0.8 * buffer[i]);
      }
      step.apply(anchor, velocity, mean);
    }
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(static_cast<double>(anchor[i]), expected[i], 2e-6) << text;
    }
  }
}

}  // namespace
}  // namespace thinreduce::outer_step_test
