#include "thinreduce/plan/planner.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace thinreduce {
namespace {

constexpr std::size_t kFp32 = 0;
constexpr std::size_t kBf16 = 1;
constexpr std::size_t kFine = 2;    // dqsg:levels=31
constexpr std::size_t kCoarse = 3;  // dqsg:levels=15

Planner make_planner() {
  return Planner(auto_options(Spec::parse("auto:methods=bf16+dqsg")));
}

// Figures of the candidates on a link of `rate` bytes per second: seconds of computing and bytes.
Planner::Trials trials_of(const Planner& planner, double rate, double latency = 0) {
  Planner::Trials trials;
  const std::vector<double> bytes = {4e6, 2e6, 6e5, 5e5, 4e5, 3e5};
  const std::vector<double> busy = {1e-4, 4e-4, 2e-3, 2e-3, 2e-3, 2e-3};
  const std::vector<double> error = {0, 3e-6, 0.004, 0.016, 0.09, 0.8};
  for (std::size_t i = 0; i < planner.options().candidates.size(); ++i) {
    trials.tried.push_back(i < 5);
    trials.figures.push_back({.seconds = latency + busy[i] + bytes[i] / rate,
                              .busy = busy[i],
                              .bytes = bytes[i],
                              .error = error[i]});
  }
  return trials;
}

// Opens steps until the planner wants trials; every step takes `seconds` per bucket.
Planner::Task open_until_trials(Planner& planner, int most, double seconds,
                                std::initializer_list<std::uint32_t> buckets = {7}) {
  for (int step = 0; step < most; ++step) {
    const Planner::Task task = planner.open_step();
    if (task == Planner::Task::try_candidates) return task;
    for (const auto id : buckets) planner.note(id, 1'000'000, 0, seconds);
  }
  return Planner::Task::none;
}

std::size_t choose(Planner& planner, double rate, double seconds = 0.01) {
  EXPECT_EQ(open_until_trials(planner, 10, seconds), Planner::Task::try_candidates);
  return planner
      .decide({{7, trials_of(planner, rate)}}, {.bytes_per_second = rate, .latency = Seconds{0}})
      .at(7);
}

TEST(Planner, KeepsSamplesOneStepBeforeTrials) {
  Planner planner = make_planner();
  for (std::uint64_t step = 0; step < Planner::kFirstSteps; ++step) {
    EXPECT_EQ(planner.open_step(), Planner::Task::none);
  }
  EXPECT_EQ(planner.open_step(), Planner::Task::keep_samples);
  EXPECT_EQ(planner.open_step(), Planner::Task::try_candidates);
}

TEST(Planner, CompressesOnASlowLink) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 12.5e6), kCoarse);
  const Plan plan = planner.plan();
  EXPECT_LT(plan.predicted, plan.uncompressed / 5);
  EXPECT_EQ(plan.buckets.at(0).spec, "dqsg:levels=15");
  EXPECT_NE(plan.reason.find("with fp32"), std::string::npos) << plan.reason;
}

TEST(Planner, DoesNotCompressOnAFastLink) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 1e11), kFp32);
  EXPECT_NE(planner.plan().reason.find("nothing is compressed"), std::string::npos);
}

TEST(Planner, TakesTheCheaperCodecInBetween) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 2e9), kBf16);
}

TEST(Planner, NeverGoesBeyondTheError) {
  Planner planner = make_planner();
  choose(planner, 1e5);
  const Plan plan = planner.plan();
  ASSERT_EQ(plan.buckets.at(0).candidates.size(), 6);
  for (const PlanCandidate& candidate : plan.buckets.at(0).candidates) {
    EXPECT_EQ(candidate.allowed, candidate.tried && candidate.error <= 0.05) << candidate.spec;
  }
}

TEST(Planner, PrefersExactnessWhereTheLinkIsIdleAnyway) {
  // The last bucket is submitted long after the first one has arrived, as fp32 as well.
  Planner planner = make_planner();
  const double rate = 125e6;
  for (int step = 0; step < 4; ++step) {
    static_cast<void>(planner.open_step());
    planner.note(1, 1'000'000, 0, 0.03);
    planner.note(2, 1'000'000, 0.5, 0.03);
  }
  const auto choices =
      planner.decide({{1, trials_of(planner, rate)}, {2, trials_of(planner, rate)}},
                     {.bytes_per_second = rate, .latency = Seconds{0}});
  EXPECT_EQ(choices.at(1), kFp32);
  // 0.5 s of waiting outweigh what the last bucket could gain with a coarser method.
  EXPECT_LE(choices.at(2), kFine);
  EXPECT_LE(planner.plan().predicted, planner.plan().uncompressed);
}

TEST(Planner, BucketsThatAreNeverCompressedDoNotHideTheOthers) {
  // The small bucket waits for the large one; that does not mean that it takes so long itself.
  Planner planner = make_planner();
  for (int step = 0; step < 4; ++step) {
    static_cast<void>(planner.open_step());
    planner.note(1, 1'000'000, 0, 0.33);
    planner.note(2, 0, 0.01, 0.33);
  }
  const auto choices = planner.decide({{1, trials_of(planner, 12.5e6)}},
                                      {.bytes_per_second = 12.5e6, .latency = Seconds{0.001}});
  EXPECT_EQ(choices.at(1), kCoarse);
}

TEST(Planner, TriesAgainWhenTheLinkChanges) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 1e11), kFp32);
  const double usual = planner.plan().predicted;
  EXPECT_EQ(open_until_trials(planner, 40, usual), Planner::Task::none) << "nothing has changed";
  EXPECT_EQ(open_until_trials(planner, 20, 20 * usual), Planner::Task::try_candidates);
  EXPECT_EQ(planner
                .decide({{7, trials_of(planner, 12.5e6)}},
                        {.bytes_per_second = 12.5e6, .latency = Seconds{0}})
                .at(7),
            kCoarse);
  EXPECT_EQ(planner.plan().changes, 1);
  // fp32 was faster before, but it would not be now.
  EXPECT_EQ(open_until_trials(planner, 60, planner.plan().predicted), Planner::Task::none);
}

TEST(Planner, TriesLessAndLessOftenWhenThatChangesNothing) {
  Planner planner = make_planner();
  choose(planner, 12.5e6, 1);
  const double wrong = 0.5 * planner.plan().predicted;  // for ever
  int trials = 0;
  for (int step = 0; step < 1000; ++step) {
    if (planner.open_step() == Planner::Task::try_candidates) {
      ++trials;
      static_cast<void>(planner.decide({{7, trials_of(planner, 12.5e6)}},
                                       {.bytes_per_second = 12.5e6, .latency = Seconds{0}}));
    }
    planner.note(7, 1'000'000, 0, wrong);
  }
  EXPECT_GE(trials, 3);
  EXPECT_LE(trials, 8);
}

TEST(Planner, GoesBackToFp32WhereThatWasFaster) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 12.5e6, 0.32), kCoarse);  // fp32 took 0.32 s
  EXPECT_EQ(open_until_trials(planner, 40, 0.35), Planner::Task::try_candidates);
  EXPECT_EQ(planner
                .decide({{7, trials_of(planner, 12.5e6)}},
                        {.bytes_per_second = 12.5e6, .latency = Seconds{0}})
                .at(7),
            kFp32);
}

TEST(Planner, StaysWithAPlanThatIsAsGood) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 12.5e6), kCoarse);
  auto trials = trials_of(planner, 12.5e6);
  trials.figures[kFine] = trials.figures[kCoarse];
  trials.figures[kFine].seconds *= 0.97;  // 3 % faster
  EXPECT_EQ(
      planner.decide({{7, trials}}, {.bytes_per_second = 12.5e6, .latency = Seconds{0}}).at(7),
      kCoarse);
}

TEST(Planner, TriesANewBucket) {
  Planner planner = make_planner();
  choose(planner, 12.5e6, 1);
  const double usual = planner.plan().predicted;
  EXPECT_EQ(open_until_trials(planner, 20, usual, {7, 8}), Planner::Task::try_candidates);
}

TEST(Cost, IsExactForTheSampleItself) {
  const TrialFigures trial{.seconds = 0.5, .busy = 0.1, .bytes = 1e6, .error = 0};
  const Prediction same = predict(trial, 1, {.bytes_per_second = 1e7, .latency = Seconds{0}});
  EXPECT_DOUBLE_EQ(same.seconds, 0.5);
  EXPECT_DOUBLE_EQ(same.wire, 0.1);
  EXPECT_NEAR(same.latency, 0.3, 1e-12);
  const Prediction larger = predict(trial, 11, {.bytes_per_second = 1e7, .latency = Seconds{0.25}});
  EXPECT_NEAR(larger.seconds, 0.25 + 0.5 + 1 + kNotHidden, 1e-12);
  EXPECT_GT(larger.seconds, larger.wire + larger.latency);
}

TEST(Cost, BucketsShareTheLink) {
  Prediction cost{.latency = 0.01, .busy = 0, .wire = 1, .seconds = 1.01, .bytes = 0};
  const std::vector<TimedBucket> buckets = {{0, cost}, {0, cost}, {0.5, cost}};
  EXPECT_NEAR(predict_finish(buckets), 3.01, 1e-12);
}

}  // namespace
}  // namespace thinreduce
