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

// Tries the candidates on two ranks and returns the figures, on which they agree. `busy` tells in
// which runs rank 1 is busy.
Planner::Trials try_on_two_ranks(const AutoOptions& options,
                                 const std::function<bool(const FrameId&)>& busy) {
  const RegisteredBucket bucket({.id = 3, .elements = kBucketElements, .tensors = {}},
                                Spec::parse("auto"), 16);
  auto ranks = simulate(connect_threads(2), {.links = ClusterLinks::parse(kLink.to_string()),
                                             .cpu_time = fake_cpu_time});
  std::vector<Planner::Trials> all(2);
  {
    std::vector<std::jthread> threads;
    for (auto& transport : ranks) {
      threads.emplace_back([&, own = std::move(transport)] {
        const auto make_exchange = [&](const FrameId& id) {
          is_busy = own->rank() == 1 && id.elements > 0 && busy(id);
          Exchange exchange(*own, Seconds(60), id);
          exchange.link = kLink;
          return exchange;
        };
        const auto sample = gradient(kSampleElements, own->rank(), 0);
        all[static_cast<std::size_t>(own->rank())] =
            try_candidates({options, 0, make_exchange}, bucket, sample);
      });
    }
  }
  EXPECT_EQ(all[0].tried, all[1].tried);
  for (std::size_t i = 0; i < all[0].figures.size(); ++i) {
    EXPECT_EQ(all[0].figures[i].seconds, all[1].figures[i].seconds);
  }
  return all[0];
}

std::string choice_after(const AutoOptions& options, const Planner::Trials& trials) {
  Planner planner(options, 2);
  planner.note(3, kBucketElements, {.seconds = 0.3});
  return options.candidates[planner.decide({{3, trials}}, kLink).at(3)].short_text();
}

TEST(Trials, AMomentInWhichARankIsBusyDecidesNothing) {
  const AutoOptions options = auto_options(Spec::parse("auto"));
  const Planner::Trials quiet = try_on_two_ranks(options, [](const FrameId&) { return false; });
  const Planner::Trials busy =
      try_on_two_ranks(options, [](const FrameId& id) { return id.step == 0; });
  ASSERT_TRUE(choice_after(options, quiet).starts_with("dqsg"));
  EXPECT_EQ(choice_after(options, busy), choice_after(options, quiet));
}

TEST(Trials, AMethodThatIsAlwaysSlowIsNotChosen) {
  const AutoOptions options = auto_options(Spec::parse("auto:methods=bf16+dqsg"));
  const std::uint16_t dqsg = Spec::parse("dqsg").info->wire_id;
  const Planner::Trials trials =
      try_on_two_ranks(options, [&](const FrameId& id) { return id.method == dqsg; });
  EXPECT_EQ(choice_after(options, trials), "bf16");
}

}  // namespace
}  // namespace thinreduce::trials_test
