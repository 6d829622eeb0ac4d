// Memory runs out at an allocation of a step, at each of the first and then at some in turn: the
// residual then holds the whole gradient, as after any other failure. One allocation fails, or all
// from one on.
//
// Specs come from methods(), so a new method is under this law by being registered.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/failing_memory.h"
#include "tests/method_laws.h"
#include "tests/session_world.h"
#include "tests/test_world.h"

namespace thinreduce::out_of_memory_test {
namespace {

// Residuals are rounded when they are taken apart and put together again, as after a failed
// message.
constexpr double kRounding = 2e-4;

struct Starved {
  std::string spec;
  int world = 1;
  BucketLayout layout = mixed_layout();
};

class OutOfMemory : public testing::TestWithParam<Starved> {
 protected:
  using Ranks = std::vector<std::unique_ptr<Method>>;

  static Ranks make_ranks() {
    const Starved& law = GetParam();
    Ranks ranks;
    for (int rank = 0; rank < law.world; ++rank) {
      ranks.push_back(
          Spec::parse(law.spec).make({.layout = law.layout, .rank = rank, .world = law.world}));
    }
    return ranks;
  }
  static MemoryArchive archive(std::size_t rank) {
    return {static_cast<int>(rank), GetParam().world};
  }

  // What a rank has after a step.
  struct Outcome {
    std::vector<float> values;
    bool failed = false;
    bool struck = false;  // an allocation has failed
  };

  // The gradient before the last has few candidates for a selection: the last step needs more room.
  static std::vector<float> gradient_of(std::size_t rank, std::uint64_t step) {
    auto values = gradient(GetParam().layout.elements, static_cast<int>(rank), step);
    if (step == first_step()) std::fill_n(values.begin(), values.size() / 2, 0.0F);
    return values;
  }

  // Runs one step, in which memory runs out at rank `starved`.
  static std::vector<Outcome> step(Ranks& ranks, std::uint64_t number, std::size_t starved = 0,
                                   const Shortage& shortage = {}) {
    const Starved& law = GetParam();
    const auto transports = connect_threads(law.world);
    std::vector<Outcome> outcomes(ranks.size());
    const auto run = [&](std::size_t rank) {
      Outcome& outcome = outcomes[rank];
      outcome.values = gradient_of(rank, number);
      std::vector<float> moment;
      if (reads_second_moments(law.spec)) {
        moment = gradient(law.layout.elements, static_cast<int>(rank), number + 500);
        for (float& value : moment) value *= value;
      }
      Exchange exchange(*transports[rank], Seconds(20),
                        {.step = number, .elements = law.layout.elements});
      exchange.link = kOwnerLink;
      begin_shortage(rank == starved ? shortage : Shortage{});
      try {
        ranks[rank]->reduce(Bucket{law.layout, outcome.values, moment}, exchange);
        outcome.struck = end_shortage();
      } catch (const std::exception& error) {
        outcome.struck = end_shortage();
        outcome.failed = true;
        transports[rank]->abandon(error.what());
      }
    };
    std::vector<std::jthread> others;
    for (std::size_t rank = 1; rank < ranks.size(); ++rank) others.emplace_back(run, rank);
    run(0);
    others.clear();
    return outcomes;
  }

  // Returns what the state that a rank saves owes to the sum, and checks that it can be loaded.
  static std::vector<float> owed(Method& method, std::size_t rank) {
    MemoryArchive saved = archive(rank);
    method.state(saved);
    saved.shows_back = true;
    const auto loaded = std::move(make_ranks()[rank]);
    loaded->state(saved);
    std::vector<float> values(GetParam().layout.elements);
    loaded->add_residual(values);
    return values;
  }

  // The step with which a method begins to compress.
  static std::uint64_t first_step() { return steps_of(GetParam().spec, 0); }
  // Returns the states before it.
  static std::vector<MemoryArchive> warm_up() {
    Ranks ranks = make_ranks();
    for (std::uint64_t number = 0; number < first_step(); ++number) (void)step(ranks, number);
    std::vector<MemoryArchive> states;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      states.push_back(archive(rank));
      ranks[rank]->state(states.back());
      states.back().shows_back = true;
    }
    return states;
  }
  // Returns the ranks after it; it leaves some memory behind.
  static Ranks after_one_step(std::vector<MemoryArchive> states) {
    Ranks ranks = make_ranks();
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank]->state(states[rank]);
    for (const Outcome& outcome : step(ranks, first_step())) EXPECT_FALSE(outcome.failed);
    return ranks;
  }

  // What the ranks have before the step that fails, and after it if nothing does.
  struct Expected {
    std::vector<MemoryArchive> states;
    PerRank owed;
    std::vector<Outcome> clean;
  };
  static Expected expect() {
    Expected expected{.states = warm_up(), .owed = {}, .clean = {}};
    Ranks ranks = after_one_step(expected.states);
    expected.clean = step(ranks, first_step() + 1);
    ranks = after_one_step(expected.states);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      expected.owed.push_back(owed(*ranks[rank], rank));
    }
    return expected;
  }

  // Returns whether an allocation has failed.
  static bool check(const Expected& expected, std::size_t starved, const Shortage& shortage) {
    Ranks ranks = after_one_step(expected.states);
    const std::uint64_t fingerprint = ranks[0]->fingerprint();
    const auto outcomes = step(ranks, first_step() + 1, starved, shortage);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << ranks.size());
      if (outcomes[rank].failed) {
        EXPECT_EQ(ranks[rank]->fingerprint(), fingerprint);
        expect_kept(owed(*ranks[rank], rank), expected.owed[rank],
                    gradient_of(rank, first_step() + 1));
      } else {
        EXPECT_EQ(outcomes[rank].values, expected.clean[rank].values);
      }
    }
    return outcomes[starved].struck;
  }

  static void expect_kept(const std::vector<float>& owed, const std::vector<float>& before,
                          const std::vector<float>& given) {
    for (std::size_t i = 0; i < owed.size(); ++i) {
      ASSERT_NEAR(owed[i], before[i] + given[i], kRounding) << "element " << i;
    }
  }
};

TEST_P(OutOfMemory, LeavesTheWholeGradientInTheResidual) {
  const Expected expected = expect();
  for (std::size_t starved = 0; starved < expected.clean.size(); ++starved) {
    for (const bool lasting : {false, true}) {
      Shortage shortage{.number = 0, .lasting = lasting};
      while (check(expected, starved, shortage)) {
        if (HasFailure()) {
          FAIL() << "allocation " << shortage.number << " of rank " << starved << ", lasting "
                 << lasting;
        }
        const bool fewer = lasting || GetParam().layout.elements > 100'000;
        shortage.number += 1 + shortage.number / (fewer ? 3 : 8);
      }
      // A rank alone may need no memory.
      EXPECT_TRUE(shortage.number > 0 || GetParam().world == 1) << "nothing was allocated";
    }
  }
}

// Returns every method with a residual. What variance drops on request is lost, and an update with
// momentum is no mean.
std::vector<Starved> starved() {
  std::vector<Starved> all;
  std::vector<std::string> specs;
  for (const Law& law : keeping_laws()) specs.push_back(law.spec);
  if (specs.empty()) return all;  // the CPU lacks the wanted target
  for (const char* spec :
       {"dqsg:clip=1.5,feedback=on", "dqsg:feedback=on,collective=gather",
        "dqsg:clip=1.5,feedback=on,collective=root", "dqsg:feedback=on,collective=owner",
        "dqsg:clip=1.5,collective=owner", "ndqsg:feedback=on,collective=owner",
        "qsgd:feedback=on,collective=owner", "terngrad:feedback=on,collective=owner",
        "gradiveq:warmup=1,interval=1", "gradiveq:warmup=1,interval=1+dqsg",
        "gradiveq:warmup=1,interval=1+qsgd", "sketch:density=0.05,min_values=1",
        "topk:density=0.05,chunk=64,values=2bit"}) {
    specs.emplace_back(spec);
  }
  for (const std::string& spec : specs) {
    for (const int world : {1, 2}) all.push_back({spec, world, mixed_layout()});
  }
  // Several parts of a selector, and several pieces of a payload.
  for (const char* spec : {"topk:collective=gather", "topk:collective=owner", "topk:chunk=4096",
                           "demo", "sketch:min_values=4096", "variance"}) {
    all.push_back({spec, 1, shapeless(300'000)});
  }
  for (const char* spec : {"fft", "fft:collective=owner"}) {
    all.push_back({spec, 1, shapeless(560'000)});
  }
  return all;
}

std::string case_name(const testing::TestParamInfo<Starved>& info) {
  return std::to_string(info.index) + "_" + test_name(info.param.spec) + "_on_" +
         std::to_string(info.param.world);
}
INSTANTIATE_TEST_SUITE_P(Laws, OutOfMemory, testing::ValuesIn(starved()), case_name);

}  // namespace
}  // namespace thinreduce::out_of_memory_test
