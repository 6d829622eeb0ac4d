// Memory runs out at an allocation of a session's step. Either the rank has the mean, or its whole
// gradient, of raw and compressed tensors, is in the state that it saves or, if the spec keeps no
// residual, in the caller's memory as before.
#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/failing_memory.h"
#include "tests/fault_world.h"
#include "tests/saved_bucket.h"
#include "tests/session_world.h"
#include "thinreduce/engine/registered_bucket.h"
#include "thinreduce/engine/session.h"

namespace thinreduce::out_of_memory_session_test {
namespace {

constexpr double kRounding = 2e-4;

// Lets memory run out in the thread of a session that reduces a bucket.
struct Plan {
  Shortage shortage;
  bool struck = false;
};

// Passes everything on.
class Forwarding : public Transport {
 public:
  explicit Forwarding(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

 private:
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    return inner_->send(peer, channel, message);
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return inner_->receive(peer, channel, message);
  }

  std::unique_ptr<Transport> inner_;
};

// A track; a session tells it when its thread begins and ends the work on a bucket.
class StarvedTrack final : public Forwarding {
 public:
  StarvedTrack(std::unique_ptr<Transport> inner, Plan& plan)
      : Forwarding(std::move(inner)), plan_(plan) {}

  void go_on_from(const Moment& /*moment*/) override { begin_shortage(plan_.shortage); }
  Moment hand_over() override {
    plan_.struck = end_shortage();
    return {.time = now()};
  }

 private:
  Plan& plan_;
};

class StarvedTransport final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  [[nodiscard]] std::unique_ptr<Transport> open_track(int number) override {
    return std::make_unique<StarvedTrack>(Transport::open_track(number), plan);
  }

  Plan plan;  // one bucket is in flight at a time
};

// What a rank has after a step.
struct Result {
  std::optional<Error> error;
  bool struck = false;
  std::vector<float> values;
  std::vector<std::byte> before;  // states, saved before the step and after it
  std::vector<std::byte> after;
  std::vector<std::byte> undone;  // and after undo_step()
};

class OutOfMemorySession : public testing::TestWithParam<FaultTrial> {
 protected:
  // Runs one step in which memory runs out at rank `starved`, after `steps` others.
  static std::vector<Result> run(const States& states, std::uint64_t steps, std::size_t starved = 0,
                                 const Shortage& shortage = {}) {
    const FaultTrial& trial = GetParam();
    auto transports = connect_threads(trial.world);
    std::vector<Result> results(transports.size());
    std::barrier together(trial.world);
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < transports.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        const auto transport = std::make_shared<StarvedTransport>(std::move(transports[rank]));
        Session session(transport, options_of(trial));
        if (!states.empty()) session.load_bytes(states[rank]);
        const auto bucket = session.add_bucket(trial.layout);
        Result& result = results[rank];
        const std::uint64_t first = steps_of(trial.spec, 0) + trial.warmup;
        const auto reduce = [&](std::uint64_t step) {
          result.values = gradient(trial.layout.elements, static_cast<int>(rank), step);
          const auto moment = moment_of(trial, static_cast<int>(rank), step);
          try {
            session.submit(bucket, result.values, moment).get();
          } catch (const Error& error) {
            result.error = error;
          }
        };
        for (std::uint64_t step = 0; step < steps; ++step) reduce(first + step);
        result.before = session.save_bytes();
        session.begin_step();
        together.arrive_and_wait();
        if (rank == starved) transport->plan.shortage = shortage;
        reduce(first + steps);
        transport->plan.shortage = {};
        result.struck = transport->plan.struck;
        result.after = session.save_bytes();
        session.undo_step();
        result.undone = session.save_bytes();
      });
    }
    ranks.clear();
    return results;
  }

  static Saved saved_by(std::size_t rank, const std::vector<std::byte>& bytes) {
    const FaultTrial& trial = GetParam();
    return {{.spec = trial.spec, .layout = trial.layout, .min_elements = kMinElements},
            {.rank = static_cast<int>(rank), .world = trial.world},
            bytes};
  }

  // A rank that failed has its whole gradient, and the step can be undone. `may_lack_state`: memory
  // may have run out before there was a place to keep the gradient in.
  static void expect_nothing_lost(std::size_t rank, const Result& result,
                                  const std::vector<float>& given, bool may_lack_state) {
    const RegisteredBucket bucket(GetParam().layout, Spec::parse(GetParam().spec), kMinElements);
    const Saved old = saved_by(rank, result.before);
    const Saved now = saved_by(rank, result.after);
    EXPECT_EQ(now.step(), old.step());
    EXPECT_EQ(now.fingerprint(), old.fingerprint());
    const bool lacks_state = may_lack_state && now.owed() == old.owed();
    const bool kept = bucket.keeps && !lacks_state;
    if (!kept) {
      EXPECT_EQ(result.values, given);
    }
    for (std::size_t i = 0; i < given.size(); ++i) {
      ASSERT_NEAR(now.owed()[i], old.owed()[i] + (kept ? given[i] : 0), kRounding)
          << "element " << i << ", " << result.error->what();
    }
    const Saved undone = saved_by(rank, result.undone);
    for (std::size_t i = 0; i < given.size(); ++i) {
      ASSERT_NEAR(undone.owed()[i], old.owed()[i], kRounding) << "element " << i << ", undone";
    }
  }

  // Returns whether an allocation has failed.
  static bool check(const States& states, std::uint64_t steps, const std::vector<Result>& clean,
                    std::size_t starved, const Shortage& shortage) {
    const auto results = run(states, steps, starved, shortage);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << results.size());
      const Result& result = results[rank];
      if (result.error) {
        EXPECT_TRUE(result.error->code() == ErrorCode::unavailable ||
                    result.error->code() == ErrorCode::lost_peer)
            << result.error->what();
        const std::uint64_t step = steps_of(GetParam().spec, 0) + GetParam().warmup + steps;
        expect_nothing_lost(rank, result,
                            gradient(GetParam().layout.elements, static_cast<int>(rank), step),
                            rank == starved && steps == 0 && shortage.lasting);
      } else {
        EXPECT_EQ(result.values, clean[rank].values);
        EXPECT_EQ(result.after, clean[rank].after);
      }
    }
    return results[starved].struck;
  }

  static void check_all(const States& states, std::uint64_t steps) {
    const auto clean = run(states, steps);
    for (std::size_t starved = 0; starved < clean.size(); ++starved) {
      for (const bool lasting : {false, true}) {
        Shortage shortage{.number = 0, .lasting = lasting};
        while (check(states, steps, clean, starved, shortage)) {
          if (HasFailure()) {
            FAIL() << "allocation " << shortage.number << " of rank " << starved << " in step "
                   << steps << ", lasting " << lasting;
          }
          shortage.number += 1 + shortage.number / (lasting ? 3 : 8);
        }
        EXPECT_GT(shortage.number, 0) << "nothing was allocated";
      }
    }
  }
};

TEST_P(OutOfMemorySession, LosesNoGradient) {
  const FaultTrial& trial = GetParam();
  States states;
  for (std::uint64_t step = 0; step < steps_of(trial.spec, 0) + trial.warmup; ++step) {
    states = states_of(run_step(trial, states, step));
  }
  for (const std::uint64_t steps : {0, 1}) {
    check_all(states, steps);
    if (HasFailure()) return;
  }
}

// Returns every method at its default, with and without a residual, and warm-up steps.
std::vector<FaultTrial> trials() {
  std::vector<FaultTrial> all;
  for (const std::string& spec : default_specs()) {
    for (const int world : {1, 2}) all.push_back({.spec = spec, .world = world});
  }
  for (const char* spec : {"dqsg:feedback=on", "qsgd:feedback=on", "ndqsg:feedback=on",
                           "topk:feedback=off", "fft:feedback=off", "gradiveq:feedback=off",
                           "dqsg:collective=root", "qsgd:collective=owner"}) {
    for (const int world : {1, 2}) all.push_back({.spec = spec, .world = world});
  }
  all.push_back({.spec = "topk", .world = 2, .link = kDirectLink});
  BucketLayout biases{.id = 0, .elements = 0, .tensors = {}};
  biases.add("bias", {5000});
  for (const char* spec : {"topk", "fp32", "sketch:momentum=0.9"}) {
    all.push_back({.spec = spec, .world = 2, .layout = biases});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Laws, OutOfMemorySession, testing::ValuesIn(trials()), trial_name);

}  // namespace
}  // namespace thinreduce::out_of_memory_session_test
