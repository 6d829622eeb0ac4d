// One step of a session in which one message goes wrong, and what each rank has afterwards.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/faulty_transport.h"
#include "tests/law_specs.h"
#include "tests/links.h"
#include "tests/session_world.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/engine/state_file.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

using States = std::vector<std::vector<std::byte>>;  // by rank
inline constexpr Seconds kFaultTimeout{20};
inline constexpr std::size_t kMinElements = 64;

// One trial of a law: a spec, its bucket and warm-up steps of the session.
struct FaultTrial {
  std::string spec;
  int world = 2;
  BucketLayout layout = mixed_layout(0);
  std::uint64_t warmup = 0;
  Link link = kOwnerLink;
  // The steps whose messages go wrong.
  std::vector<std::uint64_t> steps{};
  bool renews_bases = false;  // gradiveq: in these steps, which must be so
  // One of this many messages of a rank goes wrong: large worlds have many.
  std::uint64_t every = 1;

  // Returns the first message of a rank that goes wrong; the ranks together try places all over a
  // step.
  [[nodiscard]] std::uint64_t first(int rank) const {
    return static_cast<std::uint64_t>(rank) * every / static_cast<std::uint64_t>(world);
  }
};

// A fault of one rank.
struct RankFault {
  int rank = -1;
  Fault fault;
};

struct Outcome {
  std::optional<Error> error;
  std::vector<float> values;
  std::map<std::string, double> statistics;  // of the method; empty after an error
  std::vector<std::byte> state;              // saved afterwards
  std::uint64_t sends = 0;
  std::uint64_t receives = 0;
  int fault_peer = -1;
};

inline std::vector<float> moment_of(const FaultTrial& trial, int rank, std::uint64_t step) {
  if (!Spec::parse(trial.spec).info->second_moment) return {};
  auto moment = gradient(trial.layout.elements, rank, step + 500);
  for (float& value : moment) value = value * value;
  return moment;
}

inline SessionOptions options_of(const FaultTrial& trial) {
  return {.spec = trial.spec,
          .timeout = kFaultTimeout,
          .min_elements = kMinElements,
          .warmup_steps = trial.warmup,
          .link = trial.link,
          .momentum_inside_ok = true};
}

// Runs one step in new sessions that load `states`, unless these are empty.
inline std::vector<Outcome> run_step(const FaultTrial& trial, const States& states,
                                     std::uint64_t step, const RankFault& fault = {}) {
  auto transports = connect_threads(trial.world);
  std::vector<Outcome> outcomes(transports.size());
  std::barrier all_connected(trial.world);  // the fault must not strike a session that starts
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < transports.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      Outcome& outcome = outcomes[rank];
      const auto faulty = std::make_shared<FaultyTransport>(std::move(transports[rank]));
      Session session(faulty, options_of(trial));
      if (!states.empty()) session.load_bytes(states[rank]);
      const auto bucket = session.add_bucket(trial.layout);
      const auto moment = moment_of(trial, static_cast<int>(rank), step);
      outcome.values = gradient(trial.layout.elements, static_cast<int>(rank), step);
      all_connected.arrive_and_wait();
      faulty->arm(static_cast<int>(rank) == fault.rank ? fault.fault : Fault{});
      try {
        outcome.statistics = session.submit(bucket, outcome.values, moment).get().statistics;
      } catch (const Error& error) {
        outcome.error = error;
      }
      outcome.state = session.save_bytes();
      outcome.sends = faulty->sends();
      outcome.receives = faulty->receives();
      outcome.fault_peer = faulty->peer();
    });
  }
  ranks.clear();
  return outcomes;
}

// Submits several buckets with the trial's layout at once, in their first step. Returns what each
// rank has of each bucket; a bucket that a session which was over did not take has no state.
inline std::vector<std::vector<Outcome>> run_together(const FaultTrial& trial,
                                                      std::uint32_t buckets,
                                                      const RankFault& fault = {}) {
  auto transports = connect_threads(trial.world);
  std::vector<std::vector<Outcome>> outcomes(transports.size(), std::vector<Outcome>(buckets));
  std::barrier all_connected(trial.world);
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < transports.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      const auto faulty = std::make_shared<FaultyTransport>(std::move(transports[rank]));
      Session session(faulty, {.spec = trial.spec,
                               .timeout = kFaultTimeout,
                               .min_elements = kMinElements,
                               .link = trial.link,
                               .momentum_inside_ok = true});
      all_connected.arrive_and_wait();
      faulty->arm(static_cast<int>(rank) == fault.rank ? fault.fault : Fault{});
      std::vector<std::future<Report>> done(buckets);
      for (std::uint32_t id = 0; id < buckets; ++id) {
        Outcome& outcome = outcomes[rank][id];
        BucketLayout layout = trial.layout;
        layout.id = id;
        outcome.values = gradient(layout.elements, static_cast<int>(rank), id);
        try {
          done[id] = session.submit(session.add_bucket(layout), outcome.values);
        } catch (const Error& error) {
          outcome.error = error;
        }
      }
      for (std::uint32_t id = 0; id < buckets; ++id) {
        try {
          if (done[id].valid()) done[id].get();
        } catch (const Error& error) {
          outcomes[rank][id].error = error;
        }
      }
      const SessionState state = decode_state(session.save_bytes(), "test");
      for (std::uint32_t id = 0; id < buckets; ++id) {
        Outcome& outcome = outcomes[rank][id];
        SessionState one;
        if (const auto saved = state.buckets.find(id); saved != state.buckets.end()) {
          one.buckets.insert(*saved);
          outcome.state = encode_state(one);
        }
        outcome.sends = faulty->sends();
        outcome.receives = faulty->receives();
        outcome.fault_peer = faulty->peer();
      }
    });
  }
  ranks.clear();
  return outcomes;
}

inline States states_of(const std::vector<Outcome>& outcomes) {
  States states;
  for (const Outcome& outcome : outcomes) states.push_back(outcome.state);
  return states;
}

// Calls visit(step, states before it, outcomes of the step without a fault) for the steps of a
// trial.
inline void for_steps(
    const FaultTrial& trial,
    const std::function<void(std::uint64_t, const States&, const std::vector<Outcome>&)>& visit) {
  States states;
  for (std::uint64_t step = 0; step <= trial.steps.back(); ++step) {
    const auto clean = run_step(trial, states, step);
    for (const Outcome& outcome : clean) ASSERT_FALSE(outcome.error) << outcome.error->what();
    if (std::ranges::count(trial.steps, step) > 0) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      visit(step, states, clean);
      if (testing::Test::HasFatalFailure()) return;
    }
    states = states_of(clean);
  }
}

inline void expect_right_mean(const Outcome& outcome, const Outcome& clean) {
  EXPECT_EQ(
      std::memcmp(outcome.values.data(), clean.values.data(), clean.values.size() * sizeof(float)),
      0)
      << "a rank without an error must have the right mean";
  EXPECT_EQ(outcome.state, clean.state) << "a rank without an error must have the right state";
}

inline std::string trial_name(const testing::TestParamInfo<FaultTrial>& info) {
  return std::to_string(info.index) + "_" + test_name(info.param.spec) + "_on_" +
         std::to_string(info.param.world);
}

}  // namespace thinreduce
