// Nothing is lost when anything fails anywhere: for every message of a step and every method, a
// rank either has the mean and its residual is settled, or its whole gradient is in the state that
// it saves or, if the spec keeps no residual, in the caller's memory as before.
//
// Specs come from methods(), so a new method is under this law by being registered.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/fault_world.h"
#include "tests/ranks.h"
#include "tests/saved_bucket.h"
#include "thinreduce/engine/registered_bucket.h"
#include "thinreduce/engine/state_file.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/method/bucket.h"

namespace thinreduce::failed_message_test {
namespace {

Saved saved_by(const FaultTrial& trial, int rank, const std::vector<std::byte>& bytes) {
  return {{.spec = trial.spec, .layout = trial.layout, .min_elements = kMinElements},
          {.rank = rank, .world = trial.world},
          bytes};
}

// Returns the steps at the end of the uncompressed ones, and some compressed ones.
std::vector<std::uint64_t> interesting_steps(const std::string& spec) {
  const std::uint64_t start = steps_of(spec, 0);
  if (start == 0) return {0, 1};
  return {start - 1, start, start + 1};
}

// Residuals are rounded when they are taken apart and put together again.
constexpr double kRounding = 2e-4;

// The states of a rank before a step that failed and after it.
struct Around {
  Around(const FaultTrial& trial, int rank, const std::vector<std::byte>& before,
         const Outcome& outcome)
      : old(saved_by(trial, rank, before)), now(saved_by(trial, rank, outcome.state)) {
    EXPECT_EQ(now.step(), old.step());
    EXPECT_EQ(now.fingerprint(), old.fingerprint());
  }
  Saved old;
  Saved now;
};

// Everything that a failed rank put in is in the state that it saves.
void expect_kept(const FaultTrial& trial, int rank, std::uint64_t step,
                 const std::vector<std::byte>& before, const Outcome& outcome) {
  const Around state(trial, rank, before, outcome);
  const auto given = gradient(trial.layout.elements, rank, step);
  for (std::size_t i = 0; i < given.size(); ++i) {
    ASSERT_NEAR(state.now.owed()[i], state.old.owed()[i] + given[i], kRounding)
        << "element " << i << " of rank " << rank << ", which said: " << outcome.error->what();
  }
}

bool keeps(const FaultTrial& trial) {
  return RegisteredBucket(trial.layout, Spec::parse(trial.spec), kMinElements).keeps;
}

// The caller of a failed rank has its gradient again, bit by bit, and the state is as before.
void expect_given_back(const FaultTrial& trial, int rank, std::uint64_t step,
                       const std::vector<std::byte>& before, const Outcome& outcome) {
  const Around state(trial, rank, before, outcome);
  EXPECT_EQ(state.now.owed(), state.old.owed());
  const auto given = gradient(trial.layout.elements, rank, step);
  for (std::size_t i = 0; i < given.size(); ++i) {
    ASSERT_EQ(outcome.values[i], given[i])
        << "element " << i << " of rank " << rank << ", which said: " << outcome.error->what();
  }
}

void expect_nothing_lost(const FaultTrial& trial, int rank, std::uint64_t step,
                         const std::vector<std::byte>& before, const Outcome& outcome) {
  (keeps(trial) ? expect_kept : expect_given_back)(trial, rank, step, before, outcome);
}

// Calls check(fault) for every way in which the messages of a rank that a trial tries, whose step
// without a fault is given, can fail.
template <typename Check>
void for_faults(const FaultTrial& trial, int rank, const Outcome& clean, Check&& check) {
  for (const auto& [kind, count, name] :
       {std::tuple(FaultKind::lost_send, clean.sends, "lost send"),
        std::tuple(FaultKind::failed_send, clean.sends, "failed send"),
        std::tuple(FaultKind::failed_receive, clean.receives, "failed receive")}) {
    for (std::uint64_t k = trial.first(rank); k < count; k += trial.every) {
      SCOPED_TRACE(testing::Message() << name << " " << k);
      check(Fault{.kind = kind, .number = k});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

class FailedMessage : public testing::TestWithParam<FaultTrial> {
 protected:
  // A run that goes on from the states of ranks that all failed delivers what they had kept.
  static void expect_resumed(std::uint64_t step, const States& before,
                             const std::vector<Outcome>& failed) {
    const FaultTrial& trial = GetParam();
    const auto next = run_step(trial, states_of(failed), step + 1);
    const double decay = losses_of(trial.spec).decay;
    std::vector<double> balance(trial.layout.elements);  // put in, and not delivered or kept
    for (std::size_t r = 0; r < next.size(); ++r) {
      const int rank = static_cast<int>(r);
      ASSERT_FALSE(next[r].error) << next[r].error->what();
      const Saved old =
          saved_by(trial, rank, before.empty() ? std::vector<std::byte>() : before[r]);
      const Saved now = saved_by(trial, rank, next[r].state);
      const auto first = gradient(trial.layout.elements, rank, step);
      const auto second = gradient(trial.layout.elements, rank, step + 1);
      for (std::size_t i = 0; i < balance.size(); ++i) {
        balance[i] += static_cast<double>(old.owed()[i]) + first[i] + second[i];
        balance[i] -= static_cast<double>(now.owed()[i]) / decay + next[r].values[i];
      }
    }
    for (std::size_t i = 0; i < balance.size(); ++i) ASSERT_NEAR(balance[i], 0, 5e-3) << i;
  }

  static void check(std::uint64_t step, const States& before, const std::vector<Outcome>& clean,
                    const RankFault& fault) {
    const auto outcomes = run_step(GetParam(), before, step, fault);
    bool all_failed = true;
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      all_failed = all_failed && outcomes[rank].error;
      if (!outcomes[rank].error) {
        expect_right_mean(outcomes[rank], clean[rank]);
        continue;
      }
      EXPECT_EQ(outcomes[rank].error->code(), ErrorCode::lost_peer)
          << "rank " << rank << ": " << outcomes[rank].error->what();
      expect_nothing_lost(GetParam(), static_cast<int>(rank), step,
                          before.empty() ? std::vector<std::byte>() : before[rank], outcomes[rank]);
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(outcomes[static_cast<std::size_t>(fault.rank)].error);
    const bool adds_up = keeps(GetParam()) && balances(GetParam().spec);
    if (all_failed && fault.fault.number % 5 == 0 && adds_up) {
      expect_resumed(step, before, outcomes);
    }
  }
};

TEST_P(FailedMessage, LosesNothing) {
  const FaultTrial& trial = GetParam();
  for_steps(trial, [&](std::uint64_t step, const States& before, const auto& clean) {
    if (trial.renews_bases) {
      ASSERT_GT(clean[0].statistics.at("renewed"), 0);
    }
    for (int rank = 0; rank < trial.world; ++rank) {
      for_faults(trial, rank, clean[static_cast<std::size_t>(rank)], [&](const Fault& fault) {
        SCOPED_TRACE(testing::Message() << "rank " << rank);
        check(step, before, clean, {rank, fault});
      });
      if (HasFatalFailure()) return;
    }
  });
}

// Returns trials of every method that discards nothing.
std::vector<FaultTrial> trials_of_all_methods() {
  std::vector<FaultTrial> trials;
  const std::vector<std::string> defaults = default_specs();
  std::vector<std::string> specs = law_specs();
  specs.insert(specs.end(),
               {"gradiveq:warmup=1,interval=1", "dqsg:clip=1.5,feedback=on",
                "dqsg:clip=1.5,feedback=on,collective=root", "dqsg:feedback=on,collective=gather",
                "dqsg:feedback=on,collective=root", "dqsg:feedback=on,collective=owner",
                "ndqsg:feedback=on,collective=owner", "qsgd:feedback=on,collective=owner",
                "terngrad:feedback=on,collective=owner"});
  for (const std::string& spec : specs) {
    if (losses_of(spec).discards) continue;
    const bool is_default = std::ranges::count(defaults, spec) > 0;
    if (kSanitized && !is_default) continue;
    // Every method in full at its default, and with a sample of the messages in larger worlds;
    // other words of its options once.
    if (is_default && !kSanitized) {
      trials.push_back({.spec = spec, .world = 2, .steps = interesting_steps(spec)});
      trials.push_back({.spec = spec, .world = 3, .steps = {steps_of(spec, 1)}});
      trials.push_back({.spec = spec, .world = 5, .steps = {steps_of(spec, 0)}, .every = 11});
      trials.push_back({.spec = spec, .world = 8, .steps = {steps_of(spec, 0)}, .every = 41});
    } else {
      trials.push_back({.spec = spec, .world = 2, .steps = {steps_of(spec, 0)}});
    }
  }
  // Sums that travel in a ring or directly, and buckets of several pieces.
  if (!kSanitized) {
    for (const char* spec : {"powersgd", "gradiveq", "sketch", "topk", "fp32", "bf16", "dqsg"}) {
      for (const Link& link : {kRingLink, kDirectLink}) {
        trials.push_back({.spec = spec, .world = 3, .link = link, .steps = {steps_of(spec, 0)}});
      }
    }
    BucketLayout large{.id = 0, .elements = 0, .tensors = {}};
    large.add("fc.weight", {700, 800});
    large.add("fc.bias", {700});
    for (const char* spec :
         {"fft", "fft:collective=owner", "topk:collective=owner",
          "dqsg:feedback=on,collective=owner", "variance:collective=owner", "fp32", "bf16",
          "dqsg:collective=ring", "dqsg:collective=owner", "qsgd:collective=owner"}) {
      trials.push_back({.spec = spec, .world = 2, .layout = large, .steps = {0}});
    }
    trials.push_back(
        {.spec = "fp32", .world = 3, .layout = large, .link = kRingLink, .steps = {0}});
  }
  // Flushed slices and errors of codes that are taken back after they were delivered, because the
  // exchange of new bases failed. All ranks vote for these three steps after the last ones.
  for (const char* spec :
       {"gradiveq:warmup=1,interval=24,flush=0.25", "gradiveq:warmup=1,interval=24,flush=0.25+dqsg",
        "gradiveq:warmup=1,interval=24,flush=0.25+qsgd"}) {
    if (kSanitized) continue;
    trials.push_back(
        {.spec = spec, .world = 2, .steps = {steps_of(spec, 2)}, .renews_bases = true});
  }
  // Warm-up steps, and buckets with nothing to compress.
  trials.push_back({.spec = "topk", .world = 3, .warmup = 2, .steps = {1, 2}});
  trials.push_back({.spec = "dqsg", .world = 2, .warmup = 1, .steps = {0, 1}});
  BucketLayout biases{.id = 0, .elements = 0, .tensors = {}};
  biases.add("bias", {5000});
  trials.push_back({.spec = "topk", .world = 2, .layout = biases, .steps = {1}});
  return trials;
}
INSTANTIATE_TEST_SUITE_P(Laws, FailedMessage, testing::ValuesIn(trials_of_all_methods()),
                         trial_name);

// The same law for several buckets in flight, some of which wait behind the one that fails.
class FailedFlights : public testing::TestWithParam<std::string> {
 protected:
  static constexpr std::uint32_t kBuckets = 4;
  const FaultTrial trial_{.spec = GetParam(), .world = 2};

  void check(const std::vector<std::vector<Outcome>>& clean, const RankFault& fault) const {
    const auto outcomes = run_together(trial_, kBuckets, fault);
    bool struck = false;
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      for (std::uint32_t id = 0; id < kBuckets; ++id) {
        const Outcome& outcome = outcomes[rank][id];
        if (!outcome.error) {
          expect_right_mean(outcome, clean[rank][id]);
          continue;
        }
        struck = struck || static_cast<int>(rank) == fault.rank;
        EXPECT_EQ(outcome.error->code(), ErrorCode::lost_peer);
        EXPECT_NE(std::string(outcome.error->what()).find(kInjected), std::string::npos)
            << "rank " << rank << ", bucket " << id << ": " << outcome.error->what();
        FaultTrial trial = trial_;
        trial.layout.id = id;
        if (outcome.state.empty() && keeps(trial)) continue;
        expect_nothing_lost(trial, static_cast<int>(rank), id, {}, outcome);
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_TRUE(struck);
  }
};

TEST_P(FailedFlights, LoseNothing) {
  const auto clean = run_together(trial_, kBuckets);
  for (int rank = 0; rank < trial_.world; ++rank) {
    for_faults(trial_, rank, clean[static_cast<std::size_t>(rank)][0], [&](const Fault& fault) {
      SCOPED_TRACE(testing::Message() << "rank " << rank);
      check(clean, {rank, fault});
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Laws, FailedFlights,
                         testing::Values("topk", "powersgd", "dqsg:feedback=on", "fft", "fp32",
                                         "dqsg", "qsgd"),
                         [](const auto& test) { return test_name(test.param); });

// With `auto` the caller does not know the method in use: every gradient is kept.
TEST(FailedAuto, KeepsTheGradientOfAMethodWithoutAResidual) {
  for (const char* spec : {"auto", "auto:methods=topk,error=1000"}) {
    const FaultTrial trial{.spec = spec, .world = 2};
    const auto clean = run_step(trial, {}, 0);
    for_faults(trial, 0, clean[0], [&](const Fault& fault) {
      const auto outcomes = run_step(trial, {}, 0, {0, fault});
      for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
        if (!outcomes[rank].error) continue;
        const auto given = gradient(trial.layout.elements, static_cast<int>(rank), 0);
        const auto fields = split_fields(decode_state(outcomes[rank].state, "test").buckets.at(0));
        const auto unsent = std::ranges::find(fields, "unsent", &StateField::name);
        ASSERT_NE(unsent, fields.end());
        ASSERT_EQ(unsent->floats(), given) << outcomes[rank].error->what();
      }
    });
  }
}

// NaN in a large uncompressed bucket is found during the sum: all ranks still have their gradients.
TEST(LateNan, LeavesTheGradientAsItWas) {
  constexpr std::size_t kLarge = 700'000;
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [&](std::unique_ptr<Transport> transport) {
      Session session(std::move(transport), {});
      auto values = gradient(kLarge, session.rank(), 0);
      if (session.rank() == session.size() - 1) values[kLarge / 2] = NAN;
      const auto given = values;
      thrown_text(ErrorCode::bad_input, [&] { session.reduce(0, values); });
      EXPECT_EQ(std::memcmp(values.data(), given.data(), kLarge * sizeof(float)), 0);
      values[kLarge / 2] = 0;
      session.reduce(0, values);
    });
  }
}

// A gradient that the guard has scaled down is given back as it was.
TEST(FailedGuard, GivesBackTheGradientBeforeTheClip) {
  auto transports = connect_threads(3);
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < transports.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      const auto faulty = std::make_shared<FaultyTransport>(std::move(transports[rank]));
      Session session(faulty, {.spec = "qsgd", .guard = Guard::clip});
      auto values = gradient(5000, static_cast<int>(rank), 0);
      if (rank == 1) std::ranges::for_each(values, [](float& value) { value *= 100; });
      const auto given = values;
      // The statements of the agreement pass; a later message fails.
      if (rank == 1) faulty->arm({.kind = FaultKind::failed_receive, .number = 4});
      bool failed = false;
      try {
        session.reduce(0, values);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::lost_peer) << error.what();
        EXPECT_EQ(values, given);
        failed = true;
      }
      EXPECT_TRUE(failed || rank != 1);  // the others may have the mean already
    });
  }
}

}  // namespace
}  // namespace thinreduce::failed_message_test
