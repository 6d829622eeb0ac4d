#include "thinreduce/plan/planner.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace thinreduce::planner_test {
namespace {

constexpr std::size_t kFp32 = 0;
constexpr std::size_t kBf16 = 1;
constexpr std::size_t kFine = 2;    // dqsg:levels=31
constexpr std::size_t kCoarse = 3;  // dqsg:levels=15

Planner make_planner() {
  return Planner(auto_options(Spec::parse("auto:methods=bf16+dqsg")), 2);
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
                              .encode = busy[i] / 2,
                              .decode = busy[i] / 2,
                              .bytes = bytes[i],
                              .error = error[i]});
  }
  return trials;
}

// A bucket that is submitted after `ready` seconds and takes `seconds` from then.
BucketTimes times_of(double ready, double seconds) {
  return {.ready = ready, .seconds = seconds, .busy = 0, .wait = 0, .latency = 0};
}

// Opens steps until the planner wants trials; every step takes `seconds` per bucket.
Planner::Task open_until_trials(Planner& planner, int most, double seconds,
                                std::initializer_list<std::uint32_t> buckets = {7}) {
  for (int step = 0; step < most; ++step) {
    const Planner::Task task = planner.open_step();
    if (task == Planner::Task::try_candidates) return task;
    for (const auto id : buckets) planner.note(id, 1'000'000, times_of(0, seconds));
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
    planner.note(1, 1'000'000, times_of(0, 0.03));
    planner.note(2, 1'000'000, times_of(0.5, 0.03));
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
    planner.note(1, 1'000'000, times_of(0, 0.33));
    planner.note(2, 0, times_of(0.01, 0.33));
  }
  const auto choices = planner.decide({{1, trials_of(planner, 12.5e6)}},
                                      {.bytes_per_second = 12.5e6, .latency = Seconds{0.001}});
  EXPECT_EQ(choices.at(1), kCoarse);
}

// Opens steps until the planner has a new plan without trials; returns how many it took.
int open_until_new_plan(Planner& planner, int most, const BucketTimes& times) {
  for (int step = 1; step <= most; ++step) {
    const Planner::Task task = planner.open_step();
    if (task == Planner::Task::change_plan) return step;
    EXPECT_EQ(task, Planner::Task::none);
    planner.note(7, 1'000'000, times);
  }
  return most + 1;
}

TEST(Planner, FollowsALinkThatBecomesSlowWithoutTrials) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 1e11), kFp32);
  const double usual = planner.plan().predicted;
  EXPECT_EQ(open_until_new_plan(planner, 40, times_of(0, usual)), 41) << "nothing has changed";
  // As fp32 takes at 12.5 MB/s.
  EXPECT_LE(open_until_new_plan(planner, 20, times_of(0, usual + 4e6 / 12.5e6)), 10);
  EXPECT_NEAR(planner.link().bytes_per_second, 12.5e6, 0.5e6);
  EXPECT_EQ(planner.choices().at(7), kCoarse);
  EXPECT_EQ(planner.plan().trials, 1);
  EXPECT_EQ(planner.plan().followed, 1);
  EXPECT_EQ(planner.plan().changes, 1);
  // fp32 was faster before, but it would not be now.
  EXPECT_EQ(open_until_trials(planner, 60, planner.plan().predicted), Planner::Task::none);
}

TEST(Planner, FollowsALinkThatBecomesFast) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 12.5e6, 0.3201), kCoarse);
  const double usual = planner.plan().predicted;
  EXPECT_EQ(open_until_new_plan(planner, 40, times_of(0, usual)), 41) << "nothing has changed";
  const double fast = 2e-3 + 5e5 / 2e9;  // as the chosen method takes at 2 GB/s
  EXPECT_LE(open_until_new_plan(planner, 20, times_of(0, fast)), 10);
  EXPECT_LE(planner.choices().at(7), kBf16);
}

TEST(Planner, ALateRankIsNoSlowLink) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 1e11), kFp32);
  BucketTimes times = times_of(0, planner.plan().predicted);
  EXPECT_EQ(open_until_new_plan(planner, 20, times), 21);
  times.seconds += 0.5;  // in which most ranks wait for the last one's statement
  times.wait += 0.5;
  for (int step = 0; step < 40; ++step) {
    EXPECT_EQ(planner.open_step(), Planner::Task::none);
    planner.note(7, 1'000'000, times);
  }
  EXPECT_EQ(planner.link().bytes_per_second, 1e11);
}

TEST(Planner, ASlowProcessorIsNoSlowLink) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 60e6, 0.07), kCoarse);
  const double usual = planner.plan().predicted;
  BucketTimes times = times_of(0, usual);
  times.busy = 2e-3;
  EXPECT_EQ(open_until_new_plan(planner, 20, times), 21);
  times = times_of(0, usual + 58e-3);
  times.busy = 60e-3;
  EXPECT_LE(open_until_new_plan(planner, 20, times), 10);
  EXPECT_NEAR(planner.link().bytes_per_second, 60e6, 10e6);
  // bf16 takes 12 ms of computing and 33 ms on the link now, dqsg 60 ms of computing.
  EXPECT_EQ(planner.choices().at(7), kBf16);
}

TEST(Planner, TheLatencyIsFollowedToo) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 125e6, 0.0321), kCoarse);
  BucketTimes times = times_of(0, planner.plan().predicted);
  EXPECT_EQ(open_until_new_plan(planner, 20, times), 21);
  times.seconds += 3 * 0.05;  // of them, one in the agreement
  times.wait = 0.05;
  times.latency = 0.05;
  EXPECT_LE(open_until_new_plan(planner, 20, times), 10);
  EXPECT_NEAR(planner.link().latency.count(), 0.05, 1e-6);
  EXPECT_NEAR(planner.link().bytes_per_second, 125e6, 10e6);
}

// 200 steps on a link whose rate jumps by a factor of 50 in every few steps.
TEST(Planner, ALinkThatChangesAllTheTimeIsFollowedLessAndLess) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 1e9), kBf16);
  int plans = 0;
  for (int step = 0; step < 400; ++step) {
    const Planner::Task task = planner.open_step();
    if (task == Planner::Task::change_plan) ++plans;
    if (task == Planner::Task::try_candidates) {
      ++plans;
      static_cast<void>(planner.decide({{7, trials_of(planner, 1e9)}},
                                       {.bytes_per_second = 1e9, .latency = Seconds{0}}));
    }
    const double rate = step / 7 % 2 == 0 ? 1e9 : 2e7;
    planner.note(7, 1'000'000, times_of(0, 1e-3 + 2e6 / rate));
  }
  EXPECT_LE(plans, 25);
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
    planner.note(7, 1'000'000, times_of(0, wrong));
  }
  EXPECT_GE(trials, 3);
  EXPECT_LE(trials, 8);
}

TEST(Planner, GoesBackToFp32WhereThatWasFaster) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 12.5e6, 0.32), kCoarse);  // fp32 took 0.32 s
  planner.note(7, 1'000'000, times_of(0, 0.32));      // the last step before the plan
  EXPECT_LE(open_until_new_plan(planner, 40, times_of(0, 0.35)), 12);
  EXPECT_EQ(planner.choices().at(7), kFp32);
}

// The first step computes for long, so that the first bucket seems to have time for fp32.
TEST(Planner, ChoosesAnewByTheLastStepBeforeThePlan) {
  Planner planner = make_planner();
  const double rate = 12.5e6;
  const auto step = [&](double ready) {
    const Planner::Task task = planner.open_step();
    if (task == Planner::Task::try_candidates) {
      static_cast<void>(
          planner.decide({{1, trials_of(planner, rate)}, {2, trials_of(planner, rate)}},
                         {.bytes_per_second = rate, .latency = Seconds{0}}));
    }
    planner.note(1, 1'000'000, times_of(0, 0.32));
    planner.note(2, 1'000'000, times_of(ready, 0.64));
    return task;
  };
  EXPECT_EQ(planner.open_step(), Planner::Task::none);
  EXPECT_EQ(step(3), Planner::Task::keep_samples);  // the figures are those of the step before
  EXPECT_EQ(step(0.01), Planner::Task::try_candidates);
  ASSERT_EQ(planner.choices().at(1), kFp32);
  EXPECT_EQ(step(0.01), Planner::Task::change_plan);
  EXPECT_GT(planner.choices().at(1), kBf16);
  EXPECT_GT(planner.choices().at(2), kBf16);
}

TEST(Planner, ComesBackFromFp32WhereThatIsNoFaster) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 12.5e6, 0.32), kCoarse);
  planner.note(7, 1'000'000, times_of(0, 0.32));
  EXPECT_LE(open_until_new_plan(planner, 40, times_of(0, 0.35)), 12);
  ASSERT_EQ(planner.choices().at(7), kFp32);
  // The machine has become busy: fp32 takes longer than it did, too.
  EXPECT_LE(open_until_new_plan(planner, 40, times_of(0, 0.6)), 12);
  EXPECT_EQ(planner.choices().at(7), kCoarse);
  // fp32 is known to be no faster now.
  for (int step = 0; step < 9; ++step) {
    EXPECT_NE(planner.open_step(), Planner::Task::change_plan);
    planner.note(7, 1'000'000, times_of(0, 0.35));
  }
}

TEST(Planner, TriesAgainAfterFp32WasKept) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 12.5e6, 0.32), kCoarse);
  planner.note(7, 1'000'000, times_of(0, 0.32));
  EXPECT_LE(open_until_new_plan(planner, 40, times_of(0, 0.35)), 12);
  ASSERT_EQ(planner.choices().at(7), kFp32);
  EXPECT_EQ(open_until_trials(planner, 45, 0.32), Planner::Task::try_candidates);
}

TEST(Planner, AFewSlowStepsDoNotMeanThatFp32IsFaster) {
  Planner planner = make_planner();
  EXPECT_EQ(choose(planner, 12.5e6, 0.32), kCoarse);
  planner.note(7, 1'000'000, times_of(0, 0.32));
  for (int step = 0; step < 12; ++step) {
    EXPECT_NE(planner.open_step(), Planner::Task::change_plan) << "step " << step;
    planner.note(7, 1'000'000, times_of(0, step % 4 == 3 ? 0.06 : 0.5));
  }
  EXPECT_EQ(planner.choices().at(7), kCoarse);
}

TEST(Planner, TriesNothingWhereTheBytesTakeHardlyAnyTime) {
  for (const double rate : {0.0, 1e12}) {
    Planner planner = make_planner();
    EXPECT_EQ(open_until_trials(planner, 10, 0.01), Planner::Task::try_candidates);
    planner.set_link({.bytes_per_second = rate, .latency = Seconds{0}});
    EXPECT_FALSE(planner.may_gain(7, 1'000'000));
    EXPECT_EQ(planner.decide({}, {.bytes_per_second = rate, .latency = Seconds{0}}).at(7), kFp32);
    EXPECT_NE(planner.plan().reason.find("nothing was tried"), std::string::npos)
        << planner.plan().reason;
    EXPECT_EQ(open_until_trials(planner, 400, 0.01), Planner::Task::none);
  }
  Planner planner = make_planner();
  EXPECT_EQ(open_until_trials(planner, 10, 0.01), Planner::Task::try_candidates);
  planner.set_link({.bytes_per_second = 1e9, .latency = Seconds{0}});
  EXPECT_TRUE(planner.may_gain(7, 1'000'000));
}

TEST(Planner, TriesNothingWhereComputingTakesLongerThanTheBytes) {
  Planner planner = make_planner();
  BucketTimes times = times_of(0, 0.01);
  times.busy = 1e-3;
  for (int step = 0; step < 3; ++step) {
    static_cast<void>(planner.open_step());
    planner.note(7, 1'000'000, times);
  }
  // Half of the bytes take 2 ms, dqsg would compute for 5 ms.
  planner.set_link({.bytes_per_second = 1e9, .latency = Seconds{0}});
  EXPECT_FALSE(planner.may_gain(7, 1'000'000));
  EXPECT_EQ(planner.decide({}, {.bytes_per_second = 1e9, .latency = Seconds{0}}).at(7), kBf16);
  planner.set_link({.bytes_per_second = 1e8, .latency = Seconds{0}});
  EXPECT_TRUE(planner.may_gain(7, 1'000'000));
}

TEST(Planner, RecommendsLocalStepsWhereTheMachineIsMostlyIdle) {
  Planner planner = make_planner();
  choose(planner, 1.25e6, 3.2);
  const double step = planner.plan().predicted;  // 0.4 s of waiting, nothing hides it
  for (int i = 0; i < 20; ++i) {
    static_cast<void>(planner.open_step());
    planner.note(7, 1'000'000, times_of(0, step));
    planner.note_period(0.1 + step);
  }
  const Plan plan = planner.plan();
  EXPECT_NEAR(plan.compute, 0.1, 1e-9);
  const double steps = static_cast<double>(plan.local_steps);
  EXPECT_GE(steps * 0.1 / (steps * 0.1 + step), kBusyMachine);
  EXPECT_LT((steps - 1) * 0.1 / ((steps - 1) * 0.1 + step), kBusyMachine);
  EXPECT_NE(plan.sentence().find("local steps"), std::string::npos) << plan.sentence();
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

TEST(Planner, TriesTheOthersOnceWhenTheSessionHasGoneOnForLong) {
  Planner planner = make_planner();
  EXPECT_EQ(open_until_trials(planner, 10, 0.3), Planner::Task::try_candidates);
  EXPECT_FALSE(planner.tries_others());
  const Link link{.bytes_per_second = 12.5e6, .latency = Seconds{0}};
  auto trials = trials_of(planner, 12.5e6);
  trials.cost = 0.01;
  trials.left_out = 0.005;  // with a probe of 10 ms, 0.5 % of about 120 steps of 42 ms
  EXPECT_EQ(planner.decide({{7, trials}}, link).at(7), kCoarse);
  const double usual = planner.plan().predicted;
  EXPECT_EQ(open_until_trials(planner, 90, usual), Planner::Task::none);
  EXPECT_EQ(open_until_trials(planner, 60, usual), Planner::Task::try_candidates);
  EXPECT_TRUE(planner.tries_others());
  static_cast<void>(planner.decide({{7, trials}}, link));
  EXPECT_EQ(open_until_trials(planner, 1000, usual), Planner::Task::none);
}

TEST(Cost, IsExactForTheSampleItself) {
  const TrialFigures trial{
      .seconds = 0.5, .encode = 0.06, .decode = 0.04, .bytes = 1e6, .error = 0};
  const Prediction same = predict(trial, 1, {.bytes_per_second = 1e7, .latency = Seconds{0}});
  EXPECT_DOUBLE_EQ(same.seconds, 0.5);
  EXPECT_DOUBLE_EQ(same.wire, 0.1);
  EXPECT_NEAR(same.latency, 0.3, 1e-12);
  const Prediction larger = predict(trial, 11, {.bytes_per_second = 1e7, .latency = Seconds{0.25}});
  EXPECT_NEAR(larger.seconds, 0.25 + 0.5 + 1 + kNotHidden, 1e-12);
  EXPECT_GT(larger.seconds, larger.wire + larger.latency);
}

TEST(Cost, ATrialTellsTheCostOnOtherLinks) {
  // 0.1 s of computing, 0.1 s on the wire, 0.02 s of latency.
  const TrialFigures trial{.seconds = 0.22, .encode = 0.1, .bytes = 1e6};
  const Link tried{.bytes_per_second = 1e7, .latency = Seconds{0.01}};
  const Conditions same{.link = tried};
  EXPECT_DOUBLE_EQ(predict(trial, 7, tried, same).seconds, predict(trial, 7, tried).seconds);
  const Conditions slower{.link = {.bytes_per_second = 1e6, .latency = Seconds{0.03}},
                          .slowdown = 2};
  const Prediction there = predict(trial, 1, tried, slower);
  EXPECT_NEAR(there.wire, 1, 1e-12);
  EXPECT_NEAR(there.encode, 0.2, 1e-12);
  EXPECT_NEAR(there.latency, 0.03 + 0.02 + kLatenciesPerReduce * 0.02, 1e-12);
  EXPECT_NEAR(there.seconds, there.wire + there.encode + there.latency, 1e-12);
}

TEST(Cost, LocalStepsAreForMachinesThatMostlyWait) {
  EXPECT_EQ(recommend_local_steps(1, 0.9, 2), 1);
  EXPECT_EQ(recommend_local_steps(0, 1, 1), 1) << "the time of a step is not known";
  EXPECT_EQ(recommend_local_steps(1, 1.1, 2), 18);
  EXPECT_EQ(recommend_local_steps(1e-6, 100, 100), kMaxLocalSteps);
}

TEST(Cost, BucketsShareTheLink) {
  const Prediction cost{.latency = 0.01, .wire = 1, .seconds = 1.01};
  const std::vector<TimedBucket> buckets = {{0, cost}, {0, cost}, {0.5, cost}};
  EXPECT_NEAR(predict_finish(buckets), 3.01, 1e-12);
}

}  // namespace
}  // namespace thinreduce::planner_test
