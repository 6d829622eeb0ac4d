// Trials on a virtual cluster whose ranks compute in no time, but for the runs that a test delays.
#include "thinreduce/engine/trials.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/session_world.h"
#include "thinreduce/transport/simulate.h"

namespace thinreduce::trials_test {
namespace {

constexpr std::size_t kBucketElements = 800'000;
constexpr std::size_t kSampleElements = 50'000;
const Link kLink = Link::parse("100mbit,1ms");

// The CPU time of the calling thread: every look at it takes 5 ms while the machine is busy.
thread_local bool is_busy = false;
thread_local std::chrono::nanoseconds cpu_time_used{0};

std::chrono::nanoseconds fake_cpu_time() {
  if (is_busy) cpu_time_used += std::chrono::milliseconds(5);
  return cpu_time_used;
}

// The mean of a sample is taken when memory must not run out any more.
TEST(TakeSample, NeedsNoMemoryIfAllOfItIsReserved) {
  const RegisteredBucket bucket({.id = 3, .elements = kBucketElements, .tensors = {}},
                                Spec::parse("auto"), 16);
  const auto values = gradient(kBucketElements, 0, 0);
  std::vector<float> sample;
  take_sample(bucket.compressed, values, kSampleElements, sample);
  ASSERT_EQ(sample.size(), kSampleElements);
  std::vector<float> reserved;
  reserved.reserve(sample.size());
  const float* const memory = reserved.data();
  take_sample(bucket.compressed, values, kSampleElements, reserved);
  EXPECT_EQ(reserved.data(), memory);
  EXPECT_EQ(reserved, sample);
}

struct Case {
  // Returns whether rank 1 is busy in a run.
  std::function<bool(const FrameId&)> busy = [](const FrameId&) { return false; };
  bool knows_mean = false;
  bool try_others = false;
};

struct Result {
  Planner::Trials trials;
  std::map<std::uint16_t, int> runs;  // by the method's number on the wire
};

// Tries the candidates on two ranks and returns the figures, on which they agree.
Result try_on_two_ranks(const AutoOptions& options, const Case& given) {
  const RegisteredBucket bucket({.id = 3, .elements = kBucketElements, .tensors = {}},
                                Spec::parse("auto"), 16);
  auto ranks = simulate(connect_threads(2), {.links = ClusterLinks::parse(kLink.to_string()),
                                             .cpu_time = fake_cpu_time});
  std::vector<Planner::Trials> all(2);
  std::map<std::uint16_t, int> runs;
  {
    std::vector<std::jthread> threads;
    for (auto& transport : ranks) {
      threads.emplace_back([&, own = std::move(transport)] {
        const auto make_exchange = [&](const FrameId& id) {
          is_busy = own->rank() == 1 && id.elements > 0 && given.busy(id);
          if (own->rank() == 0 && id.elements > 0) ++runs[id.method];
          Exchange exchange(*own, Seconds(60), id);
          exchange.link = kLink;
          return exchange;
        };
        Sample sample{.values = gradient(kSampleElements, own->rank(), 0), .mean = {}};
        if (given.knows_mean) {
          for (const double value : true_mean(kSampleElements, 2, 0)) {
            sample.mean.push_back(static_cast<float>(value));
          }
        }
        all[static_cast<std::size_t>(own->rank())] = try_candidates(
            {.options = options, .make_exchange = make_exchange, .try_others = given.try_others},
            bucket, sample);
      });
    }
  }
  EXPECT_EQ(all[0].tried, all[1].tried);
  for (std::size_t i = 0; i < all[0].figures.size(); ++i) {
    EXPECT_EQ(all[0].figures[i].seconds, all[1].figures[i].seconds);
  }
  return {all[0], runs};
}

std::uint16_t number_of(const char* spec) {
  return Spec::parse(spec).info->wire_id;
}

std::string choice_after(const AutoOptions& options, const Planner::Trials& trials) {
  Planner planner(options, 2);
  planner.note(3, kBucketElements, {.seconds = 0.3});
  return options.candidates[planner.decide({{3, trials}}, kLink).at(3)].spec.short_text();
}

TEST(Trials, AMomentInWhichARankIsBusyDecidesNothing) {
  const AutoOptions options = auto_options(Spec::parse("auto"));
  const std::string quiet = choice_after(options, try_on_two_ranks(options, {}).trials);
  const std::string busy = choice_after(
      options,
      try_on_two_ranks(options, {.busy = [](const FrameId& id) { return id.step == 0; }}).trials);
  EXPECT_TRUE(quiet.starts_with("dqsg")) << quiet;
  EXPECT_TRUE(busy.starts_with("dqsg")) << busy;
}

TEST(Trials, AMethodThatIsAlwaysSlowIsNotChosen) {
  const AutoOptions options = auto_options(Spec::parse("auto:methods=bf16+dqsg"));
  const Result result = try_on_two_ranks(
      options, {.busy = [](const FrameId& id) { return id.method == number_of("dqsg"); }});
  EXPECT_EQ(choice_after(options, result.trials), "bf16");
}

TEST(Trials, OnASlowLinkTheBytesDecideWithFewTrials) {
  const AutoOptions options = auto_options(Spec::parse("auto"));
  const Result first = try_on_two_ranks(options, {.knows_mean = true});
  const std::map<std::uint16_t, int> dqsg_alone{{number_of("dqsg"), 2}};
  EXPECT_EQ(first.runs, dqsg_alone) << "neither fp32 nor bf16 is tried";
  EXPECT_EQ(choice_after(options, first.trials), "dqsg");
  EXPECT_GT(first.trials.left_out, 0);
  // The assumed figures of fp32 are those of a trial.
  const Result tried = try_on_two_ranks(options, {});
  EXPECT_EQ(tried.runs.at(number_of("fp32")), 1);
  EXPECT_EQ(choice_after(options, tried.trials), "dqsg");
  EXPECT_NEAR(first.trials.figures[0].bytes, tried.trials.figures[0].bytes,
              0.02 * tried.trials.figures[0].bytes);
  EXPECT_NEAR(first.trials.figures[0].seconds, tried.trials.figures[0].seconds,
              0.1 * tried.trials.figures[0].seconds);
}

TEST(Trials, OthersAreTriedWhenThereIsTime) {
  const AutoOptions options = auto_options(Spec::parse("auto"));
  const Result result = try_on_two_ranks(options, {.knows_mean = true, .try_others = true});
  EXPECT_EQ(result.runs.count(number_of("fft")), 1);
  EXPECT_EQ(result.trials.left_out, 0);
  const AutoOptions fft = auto_options(Spec::parse("auto:methods=fft"));
  EXPECT_EQ(try_on_two_ranks(fft, {}).runs.count(number_of("fft")), 1) << "there is nothing else";
}

TEST(Trials, AFinerSettingIsTriedWhereTheErrorMustBeSmall) {
  const AutoOptions options = auto_options(Spec::parse("auto:error=0.003,methods=dqsg"));
  const Result result = try_on_two_ranks(options, {.knows_mean = true});
  EXPECT_EQ(result.trials.tried, (std::vector<bool>{true, true, true, false, false}));
}

}  // namespace
}  // namespace thinreduce::trials_test
