// gradiveq with another method that quantizes its projections.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/gradiveq_world.h"
#include "tests/ranks.h"
#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::composed_test {
namespace {

const std::vector<std::string> kInner = {"qsgd:bits=4", "dqsg:levels=15", "qsgd:bits=2",
                                         "dqsg:levels=3"};

GradiveqSettings composed(const std::string& inner, std::uint64_t warmup, std::uint64_t interval) {
  auto settings = quick(warmup, interval);
  settings.quantizer = projection_quantizer(*Spec::parse("gradiveq+" + inner).inner);
  return settings;
}

// Slices whose coordinates in some fixed, rotated system fall off in size, as those of real layers
// do; each rank has the common part and noise of its own.
PerRank correlated_gradients(int world, std::size_t slices, std::size_t slice, unsigned seed) {
  const auto directions = normal_gradients(static_cast<int>(slice), slice, 99);
  const auto common = normal_gradients(1, slices * slice, 1000 + seed);
  const auto own = normal_gradients(world, slices * slice, seed);
  PerRank gradients(static_cast<std::size_t>(world), std::vector<float>(slices * slice));
  for (std::size_t r = 0; r < gradients.size(); ++r) {
    for (std::size_t s = 0; s < slices; ++s) {
      for (std::size_t j = 0; j < slice; ++j) {
        const auto size = static_cast<float>(std::pow(0.85, static_cast<double>(j)));
        const float amount = size * (common[0][s * slice + j] + 0.5f * own[r][s * slice + j]);
        for (std::size_t k = 0; k < slice; ++k) {
          gradients[r][s * slice + k] += amount * directions[j][k];
        }
      }
    }
  }
  return gradients;
}

TEST(GradiveqComposed, SameBitsInAllWorldsAndShapes) {
  for (const auto& inner : kInner) {
    for (const int world : {1, 2, 3, 4, 8}) {
      if (world > 2 && inner.find('4') == std::string::npos && world != 4) continue;
      SCOPED_TRACE(testing::Message() << world << " ranks, " << inner);
      const auto layout = layout_of({{16, 16, 3, 3}, {16}, {10, 512}, {12, 17}});
      GradiveqWorld ranks(world, composed(inner, 2, 4), layout);
      for (unsigned step = 0; step < 9; ++step) {
        const auto gradients = normal_gradients(world, layout.elements, step);
        const auto mean = ranks.mean(gradients);
        for (const float value : mean) ASSERT_TRUE(std::isfinite(value));
        if (step < 2) {
          EXPECT_LT(error_of(mean, gradients), 1e-12);
        } else if (ranks.statistics[0].at("renewed") == 0) {
          EXPECT_LT(ranks.payload_bytes[0], layout.elements * 4 / 6);
        }
      }
    }
  }
}

TEST(GradiveqComposed, OddSizes) {
  for (const std::string inner : {"qsgd:bits=4", "dqsg:levels=7"}) {
    for (const std::size_t elements : {0, 1, 2, 5, 63, 1009}) {
      for (const bool phases : {false, true}) {
        SCOPED_TRACE(testing::Message() << inner << ", " << elements << " elements");
        auto settings = composed(inner, 1, 3);
        settings.phases = phases;
        settings.feedback = !phases;
        GradiveqWorld ranks(3, settings, shapeless(elements));
        for (unsigned step = 0; step < 8; ++step) {
          for (const float value : ranks.mean(normal_gradients(3, elements, step))) {
            ASSERT_TRUE(std::isfinite(value));
          }
        }
      }
    }
  }
}

// Within the basis nothing is lost but by rounding, and that little.
TEST(GradiveqComposed, FineCodesOfGradientsWithFewDirectionsAreNearlyExact) {
  for (const std::string inner : {"qsgd:bits=8,block=16", "dqsg:levels=255,block=32"}) {
    auto settings = composed(inner, 3, 50);
    settings.slice = 40;
    set_basis_size(settings, 5);
    GradiveqWorld ranks(4, settings, shapeless(40 * 40));
    for (unsigned step = 0; step < 10; ++step) {
      const auto gradients = few_direction_gradients(4, 40, 40, 5, step);
      // Steps of 4/127 of a root mean square; what is owed comes on top of the gradient.
      EXPECT_LT(error_of(ranks.mean(gradients), gradients), 1e-3) << inner;
    }
  }
}

// The applied means, the values that each rank holds back and its residual make up the gradients.
// The values held back stay bounded, even with quantizers whose error is larger than their input.
TEST(GradiveqComposed, NothingIsLostAndNothingGrows) {
  constexpr std::size_t kSlice = 32;
  constexpr std::size_t kElements = kSlice * 50 + 9;
  for (const auto& inner : kInner) {
    SCOPED_TRACE(inner);
    auto settings = composed(inner, 2, 7);
    settings.slice = kSlice;
    settings.sample = settings.flush = 0.03;
    settings.trigger = kNoVotes;
    GradiveqWorld ranks(3, settings, shapeless(kElements));
    Totals so_far(kElements);
    double owes = 0;
    for (unsigned step = 0; step < 60; ++step) {
      const auto gradients = normal_gradients(3, kElements, step);
      so_far.add(gradients, ranks.mean(gradients));
      if (step % 6 != 3) continue;
      auto total = so_far.applied;
      for (std::size_t rank = 0; rank < 3; ++rank) {
        const auto saved = ranks.saved(rank);
        const auto residual = residual_of(saved, kSlice);
        for (std::size_t i = 0; i < kElements; ++i) {
          total[i] += static_cast<double>(residual[i]);
        }
        double energy = 0;
        for (const float value : saved.find("owed")) energy += std::pow(value, 2.0);
        owes = std::max(owes, energy);
      }
      // Roundings of sums of up to 60 normal numbers.
      for (std::size_t i = 0; i < kElements; ++i)
        ASSERT_NEAR(total[i], so_far.given[i], 3e-4) << step;
    }
    // A step adds 200 projections of variance 1. With an error of w times what is quantized, the
    // factor 1/(1+w) leaves w of it: at 2 bits and a block of 200, w is about 13.
    EXPECT_GT(owes, 0);
    EXPECT_LT(owes, 200 * 20);
  }
}

TEST(GradiveqComposed, SavedStateResumesToTheSameBits) {
  for (const std::string inner : {"qsgd:bits=4", "dqsg:levels=7"}) {
    for (const unsigned moment : {1U, 4U, 9U}) {
      SCOPED_TRACE(testing::Message() << inner << " saved after " << moment << " steps");
      auto settings = composed(inner, 3, 5);
      settings.sample = settings.flush = 0.05;
      expect_saved_state_resumes(settings, moment);
    }
  }
  // Projections of a basis of another size.
  GradiveqWorld ranks(1, composed("qsgd", 1, 5), layout_of({{16, 16}}));
  for (unsigned step = 0; step < 3; ++step) (void)ranks.mean(normal_gradients(1, 256, step));
  auto cut = ranks.saved(0);
  for (auto& [name, values] : cut.vectors) {
    if (name == "owed") values.pop_back();
  }
  cut.shows_back = true;
  EXPECT_THROW(ranks.method(0).state(cut), Error);
}

TEST(GradiveqComposed, FailedExchangeKeepsTheGradient) {
  for (const std::string inner : {"qsgd:bits=4", "dqsg:levels=7"}) {
    SCOPED_TRACE(inner);
    expect_failed_exchange_keeps_the_gradient(composed(inner, 2, 4));
  }
}

// Without feedback codes are not shrunk: on average they are what was projected.
TEST(GradiveqComposed, WithoutFeedbackTheCodesAreUnbiased) {
  for (const std::string inner : {"qsgd:bits=3,block=32", "dqsg:levels=3"}) {
    auto settings = composed(inner, 1, 10000);
    settings.slice = 16;
    settings.ratio = 1;
    settings.feedback = false;
    settings.sample = 0;
    settings.trigger = kNoVotes;
    constexpr std::size_t kElements = 16 * 20;
    GradiveqWorld ranks(2, settings, shapeless(kElements));
    const auto gradients = normal_gradients(2, kElements, 3);
    std::vector<float> average(kElements);
    constexpr int kSteps = 400;
    for (int step = 0; step <= kSteps; ++step) {
      const auto mean = ranks.mean(gradients);
      if (step == 0) continue;
      for (std::size_t i = 0; i < kElements; ++i) average[i] += mean[i] / kSteps;
    }
    // Errors are independent from step to step; of one step they have about the gradient's energy.
    EXPECT_LT(error_of(average, gradients), 5.0 / kSteps) << inner;
    EXPECT_FALSE(ranks.saved(0).has("owed"));
  }
}

// The paper's claim: at the same bytes, a gentler projection with coarser numbers loses less than
// projecting alone or quantizing alone.
TEST(GradiveqComposed, BothTogetherBeatEitherAtTheSameRatio) {
  constexpr std::size_t kSlice = 64;
  constexpr std::size_t kSlices = 600;
  const auto layout = shapeless(kSlice * kSlices);
  struct Result {
    double error = 0;
    double bytes = 0;
  };
  const auto run = [&](TestWorld&& ranks) {
    Result result;
    constexpr unsigned kSteps = 16;
    constexpr unsigned kJudged = kSteps / 2;
    for (unsigned step = 0; step < kSteps; ++step) {
      const auto gradients = correlated_gradients(3, kSlices, kSlice, step);
      const auto mean = ranks.mean(gradients);
      if (step < kSteps - kJudged) continue;
      result.error += error_of(mean, gradients) / kJudged;
      result.bytes += static_cast<double>(ranks.payload_bytes[0]) / kJudged;
    }
    return result;
  };
  const auto composed_of = [&](std::size_t size, const std::string& inner) {
    GradiveqSettings settings = inner.empty() ? quick(6, 100) : composed(inner, 6, 100);
    settings.slice = kSlice;
    settings.sample = settings.flush = 0;
    settings.trigger = kNoVotes;
    set_basis_size(settings, size);
    return GradiveqWorld(3, settings, layout);
  };
  const Result both = run(composed_of(20, "dqsg:levels=15"));
  const Result gathered = run(composed_of(20, "qsgd:bits=6,block=256"));
  const Result projected = run(composed_of(4, ""));
  const Result quantized = run(TestWorld(3, "dqsg:levels=3", layout));
  // Neither has fewer bytes than both together.
  EXPECT_LE(both.bytes, 1.02 * projected.bytes);
  EXPECT_LE(both.bytes, 1.02 * quantized.bytes);
  EXPECT_LE(gathered.bytes, 1.02 * projected.bytes);
  EXPECT_LT(both.error, 0.5 * projected.error);
  EXPECT_LT(both.error, 0.5 * quantized.error);
  EXPECT_LT(gathered.error, 0.5 * projected.error);
}

TEST(GradiveqComposed, SpecsSayWhatComposes) {
  const Spec spec = Spec::parse("gradiveq:ratio=4,slice=256+qsgd:bits=3");
  EXPECT_EQ(spec.name(), "gradiveq+qsgd");
  EXPECT_EQ(spec.short_text(), "gradiveq:slice=256,ratio=4+qsgd:bits=3");
  EXPECT_EQ(Spec::parse(spec.full_text()).full_text(), spec.full_text());
  EXPECT_NE(spec.full_text(), Spec::parse("gradiveq:ratio=4,slice=256").full_text());
  EXPECT_EQ(Spec::parse("gradiveq+qsgd").full_text(),
            Spec::parse("gradiveq+qsgd:bits=6").full_text());
  // A plus in a number is none between methods.
  EXPECT_EQ(Spec::parse("gradiveq:ratio=1e+1+dqsg").options.text("ratio"), "10");
  const auto refused = [](const std::string& text) {
    return thrown_text(ErrorCode::bad_spec, [&] {
      (void)Spec::parse(text).make({.layout = shapeless(100), .rank = 0, .world = 1, .seed = 0});
    });
  };
  EXPECT_NE(
      refused("gradiveq+topk").find("gradiveq+ must be followed by exactly one of: qsgd, dqsg"),
      std::string::npos);
  EXPECT_NE(refused("gradiveq+qsgd+dqsg").find("exactly one of"), std::string::npos);
  EXPECT_NE(
      refused("topk+qsgd").find("topk composes with no other method; only these do: gradiveq"),
      std::string::npos);
  EXPECT_NE(refused("gradiveq+nothing").find("no method 'nothing'"), std::string::npos);
  EXPECT_NE(refused("gradiveq+").find("second method must follow the plus"), std::string::npos);
  EXPECT_NE(refused("gradiveq+qsgd:rank=3").find("qsgd has no option 'rank'"), std::string::npos);
  EXPECT_NE(refused("gradiveq+qsgd:feedback=on").find("own feedback covers"), std::string::npos);
  EXPECT_NE(refused("gradiveq+dqsg:collective=root").find("got root"), std::string::npos);
  EXPECT_NE(refused("gradiveq+dqsg:collective=owner").find("got owner"), std::string::npos);
  EXPECT_NE(refused("gradiveq+qsgd:collective=owner").find("got owner"), std::string::npos);
  EXPECT_NE(refused("gradiveq+dqsg:levels=4").find("levels must be odd"), std::string::npos);
  EXPECT_NE(refused("gradiveq+dqsg:collective=gather").find("got gather"), std::string::npos);
  EXPECT_NE(refused("gradiveq+dqsg:clip=2").find("clip must be 0"), std::string::npos);
}

}  // namespace
}  // namespace thinreduce::composed_test
