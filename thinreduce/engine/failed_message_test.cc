// Nothing is lost when anything fails anywhere: for every message of a step and every method with a
// residual, a rank either has the mean and its residual is settled, or its whole gradient is in the
// state that it saves.
//
// Specs come from methods(), so a new method is under this law by being registered.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/fault_world.h"
#include "thinreduce/engine/registered_bucket.h"
#include "thinreduce/engine/state_file.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/method/bucket.h"

namespace thinreduce {
namespace {

// A bucket's state as a rank saved it.
class Saved {
 public:
  Saved(const Trial& trial, int rank, const std::vector<std::byte>& bytes) {
    const RegisteredBucket bucket(trial.layout, Spec::parse(trial.spec), kMinElements);
    if (bucket.compressible) {
      method_ = bucket.spec.make({.layout = bucket.compressed, .rank = rank, .world = trial.world});
    }
    owed_.resize(trial.layout.elements);
    if (bytes.empty()) return;  // before the first step
    const BucketState state = decode_state(bytes, "test").buckets.at(trial.layout.id);
    step_ = state.step;
    std::vector<float> unsent;
    const auto show = [&](Archive& archive) {
      archive.summed("unsent", unsent, Archive::Length::per_element_or_none);
      if (method_) method_->state(archive);
    };
    load_fields(show, state, trial.layout.id, {.rank = rank, .world = trial.world});
    if (method_) method_->add_residual(owed_);
    // A method may leave anything outside the tensors that it compresses; nobody sees it.
    for_uncompressed(bucket.compressed, [&](std::size_t first, std::size_t count) {
      if (method_) std::fill_n(&owed_[first], count, 0.0F);
    });
    for (std::size_t i = 0; i < unsent.size(); ++i) owed_[i] += unsent[i];
  }

  // Returns what the rank still owes to the sum, per element.
  [[nodiscard]] const std::vector<float>& owed() const { return owed_; }
  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] std::uint64_t fingerprint() const { return method_ ? method_->fingerprint() : 0; }

 private:
  std::unique_ptr<Method> method_;
  std::vector<float> owed_;
  std::uint64_t step_ = 0;
};

// Returns the steps at the end of the uncompressed ones, and some compressed ones.
std::vector<std::uint64_t> interesting_steps(const std::string& spec) {
  const std::uint64_t start = steps_of(spec, 0);
  if (start == 0) return {0, 1};
  return {start - 1, start, start + 1};
}

// Residuals are rounded when they are taken apart and put together again.
constexpr double kRounding = 2e-4;

class FailedMessage : public testing::TestWithParam<Trial> {
 protected:
  // Everything that a failed rank put in is in the state that it saves.
  static void expect_kept(int rank, std::uint64_t step, const std::vector<std::byte>& before,
                          const Outcome& outcome) {
    const Trial& trial = GetParam();
    const Saved old(trial, rank, before);
    const Saved now(trial, rank, outcome.state);
    EXPECT_EQ(now.step(), old.step());
    EXPECT_EQ(now.fingerprint(), old.fingerprint());
    const auto given = gradient(trial.layout.elements, rank, step);
    for (std::size_t i = 0; i < given.size(); ++i) {
      ASSERT_NEAR(now.owed()[i], old.owed()[i] + given[i], kRounding)
          << "element " << i << " of rank " << rank << ", which said: " << outcome.error->what();
    }
  }

  // A run that goes on from the states of ranks that all failed delivers what they had kept.
  static void expect_resumed(std::uint64_t step, const States& before,
                             const std::vector<Outcome>& failed) {
    const Trial& trial = GetParam();
    const auto next = run_step(trial, states_of(failed), step + 1);
    std::vector<double> balance(trial.layout.elements);  // put in, and not delivered or kept
    for (std::size_t r = 0; r < next.size(); ++r) {
      const int rank = static_cast<int>(r);
      ASSERT_FALSE(next[r].error) << next[r].error->what();
      const Saved old(trial, rank, before.empty() ? std::vector<std::byte>() : before[r]);
      const Saved now(trial, rank, next[r].state);
      const auto first = gradient(trial.layout.elements, rank, step);
      const auto second = gradient(trial.layout.elements, rank, step + 1);
      for (std::size_t i = 0; i < balance.size(); ++i) {
        balance[i] += static_cast<double>(old.owed()[i]) + first[i] + second[i];
        balance[i] -= static_cast<double>(now.owed()[i]) + next[r].values[i];
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
      EXPECT_EQ(outcomes[rank].error->code(), ErrorCode::lost_peer);
      expect_kept(static_cast<int>(rank), step,
                  before.empty() ? std::vector<std::byte>() : before[rank], outcomes[rank]);
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(outcomes[static_cast<std::size_t>(fault.rank)].error);
    if (all_failed && fault.fault.number % 5 == 0) expect_resumed(step, before, outcomes);
  }
};

TEST_P(FailedMessage, LosesNothing) {
  const Trial& trial = GetParam();
  for_steps(trial, [&](std::uint64_t step, const States& before, const auto& clean) {
    for (int rank = 0; rank < trial.world; ++rank) {
      const Outcome& own = clean[static_cast<std::size_t>(rank)];
      for (const auto& [kind, count, name] :
           {std::tuple(FaultKind::lost_send, own.sends, "lost send"),
            std::tuple(FaultKind::failed_send, own.sends, "failed send"),
            std::tuple(FaultKind::failed_receive, own.receives, "failed receive")}) {
        for (std::uint64_t k = 0; k < count; ++k) {
          SCOPED_TRACE(testing::Message() << name << " " << k << " of rank " << rank);
          check(step, before, clean, {rank, {.kind = kind, .number = k}});
          if (HasFatalFailure()) return;
        }
      }
    }
  });
}

// Returns the specs that keep a residual. What variance drops on request is lost.
std::vector<Trial> keeping_trials() {
  std::vector<Trial> trials;
  const std::vector<std::string> defaults = default_specs();
  std::vector<std::string> specs = law_specs();
  specs.insert(specs.end(),
               {"gradiveq:warmup=1,interval=1", "dqsg:clip=1.5,feedback=on",
                "dqsg:feedback=on,collective=owner", "qsgd:feedback=on,collective=owner",
                "terngrad:feedback=on,collective=owner"});
  for (const std::string& spec : specs) {
    const RegisteredBucket bucket(mixed_layout(0), Spec::parse(spec), kMinElements);
    if (!bucket.keeps || spec == "variance:residual=drop") continue;
    const bool is_default = std::ranges::count(defaults, spec) > 0;
    if (kSanitized && !is_default) continue;
    // Every method in full at its default; other words of its options once.
    if (is_default && !kSanitized) {
      trials.push_back({.spec = spec, .world = 2, .steps = interesting_steps(spec)});
      trials.push_back({.spec = spec, .world = 3, .steps = {steps_of(spec, 1)}});
    } else {
      trials.push_back({.spec = spec, .world = 2, .steps = {steps_of(spec, 0)}});
    }
  }
  // Warm-up steps, and buckets with nothing to compress.
  trials.push_back({.spec = "topk", .world = 3, .warmup = 2, .steps = {1, 2}});
  BucketLayout biases{.id = 0, .elements = 0, .tensors = {}};
  biases.add("bias", {5000});
  trials.push_back({.spec = "topk", .world = 2, .layout = biases, .steps = {1}});
  return trials;
}
INSTANTIATE_TEST_SUITE_P(Laws, FailedMessage, testing::ValuesIn(keeping_trials()), trial_name);

// Buckets that wait behind the one that fails are not reduced any more; their gradients are kept.
TEST(FailedSession, KeepsTheGradientsOfSubmittedBuckets) {
  auto transports = connect_threads(2);
  std::barrier all_connected(2);
  std::vector<std::jthread> ranks;
  constexpr std::uint32_t kBuckets = 3;
  for (std::size_t rank = 0; rank < transports.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      const auto faulty = std::make_shared<FaultyTransport>(std::move(transports[rank]));
      Session session(faulty,
                      {.spec = "topk", .timeout = kFaultTimeout, .min_elements = kMinElements});
      all_connected.arrive_and_wait();
      if (rank == 0) faulty->arm({.kind = FaultKind::failed_receive, .number = 0});
      std::vector<std::vector<float>> values;
      std::vector<std::future<Report>> pending;
      for (std::uint32_t id = 0; id < kBuckets; ++id) {
        values.push_back(gradient(5223, static_cast<int>(rank), id));
      }
      for (std::uint32_t id = 0; id < kBuckets; ++id) {
        const auto bucket = session.add_bucket(mixed_layout(id));
        try {
          pending.push_back(session.submit(bucket, values[id]));
        } catch (const Error&) {
          break;  // the session was over: this bucket was not submitted
        }
      }
      for (auto& done : pending) EXPECT_THROW(done.get(), Error);
      const SessionState state = decode_state(session.save_bytes(), "test");
      for (std::uint32_t id = 0; id < pending.size(); ++id) {
        const Trial trial{.spec = "topk", .layout = mixed_layout(id)};
        SessionState one;
        one.buckets[id] = state.buckets.at(id);
        const Saved saved(trial, static_cast<int>(rank), encode_state(one));
        EXPECT_EQ(saved.owed(), gradient(5223, static_cast<int>(rank), id)) << "bucket " << id;
      }
    });
  }
}

}  // namespace
}  // namespace thinreduce
