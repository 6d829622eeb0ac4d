// Nothing altered goes unseen: for every message of a step and every method, a rank that gets a
// flipped bit says so and names the sender; all others hear of it or have the right mean.
//
// Specs come from methods(), so a new method is under this law by being registered.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/fault_world.h"

namespace thinreduce::altered_message_test {
namespace {

bool names(const Error& error, int rank) {
  return std::string(error.what()).find("rank " + std::to_string(rank)) != std::string::npos;
}

// The receiver of the sender's altered message refuses it; the others hear of it.
void expect_refused(int sender, const std::vector<Outcome>& outcomes,
                    const std::vector<Outcome>& clean) {
  const int receiver = outcomes[static_cast<std::size_t>(sender)].fault_peer;
  ASSERT_GE(receiver, 0);
  const auto& refused = outcomes[static_cast<std::size_t>(receiver)].error;
  ASSERT_TRUE(refused) << "rank " << receiver << " took an altered message";
  EXPECT_EQ(refused->code(), ErrorCode::bad_frame) << refused->what();
  EXPECT_TRUE(names(*refused, sender)) << refused->what();
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const Outcome& outcome = outcomes[rank];
    if (static_cast<int>(rank) == receiver) continue;
    if (!outcome.error) {
      expect_right_mean(outcome, clean[rank]);
      continue;
    }
    EXPECT_EQ(outcome.error->code(), ErrorCode::lost_peer) << outcome.error->what();
    EXPECT_NE(std::string(outcome.error->what()).find(refused->what()), std::string::npos)
        << outcome.error->what();
  }
}

class AlteredMessage : public testing::TestWithParam<FaultTrial> {};

TEST_P(AlteredMessage, IsRefusedByItsReceiver) {
  const FaultTrial& trial = GetParam();
  for_steps(trial, [&](std::uint64_t step, const States& before, const auto& clean) {
    for (int sender = 0; sender < trial.world; ++sender) {
      const std::uint64_t sends = clean[static_cast<std::size_t>(sender)].sends;
      for (std::uint64_t k = trial.first(sender); k < sends; k += trial.every) {
        SCOPED_TRACE(testing::Message() << "send " << k << " of rank " << sender);
        const Fault fault{FaultKind::flipped_bit, k, k * 2654435761U};
        const auto outcomes = run_step(trial, before, step, {sender, fault});
        expect_refused(sender, outcomes, clean);
        if (HasFatalFailure()) return;
      }
    }
  });
}

// Several buckets in flight: whichever has the altered message, every bucket that fails names it.
TEST(AlteredFlights, AreRefusedByTheirReceiver) {
  constexpr std::uint32_t kBuckets = 4;
  const FaultTrial trial{.spec = "topk", .world = 3};
  const auto clean = run_together(trial, kBuckets);
  for (std::uint64_t k = 0; k < clean[1][0].sends; ++k) {
    SCOPED_TRACE(testing::Message() << "send " << k);
    const auto outcomes =
        run_together(trial, kBuckets, {1, {FaultKind::flipped_bit, k, k * 2654435761U}});
    const int receiver = outcomes[1][0].fault_peer;
    ASSERT_GE(receiver, 0);
    const auto& refused = outcomes[static_cast<std::size_t>(receiver)];
    EXPECT_TRUE(
        std::ranges::any_of(refused, [](const Outcome& one) { return one.error.has_value(); }));
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      for (std::uint32_t id = 0; id < kBuckets; ++id) {
        const Outcome& outcome = outcomes[rank][id];
        if (!outcome.error) {
          expect_right_mean(outcome, clean[rank][id]);
        } else if (static_cast<int>(rank) == receiver) {
          EXPECT_EQ(outcome.error->code(), ErrorCode::bad_frame) << outcome.error->what();
          EXPECT_TRUE(names(*outcome.error, 1)) << outcome.error->what();
        } else {
          EXPECT_EQ(outcome.error->code(), ErrorCode::lost_peer) << outcome.error->what();
        }
      }
    }
  }
}

std::vector<FaultTrial> altered_trials() {
  std::vector<FaultTrial> trials;
  const std::vector<std::string> defaults = default_specs();
  for (const std::string& spec : law_specs()) {
    // The end of the uncompressed steps, where there are any, and the first compressed one.
    const std::uint64_t start = steps_of(spec, 0);
    const std::vector<std::uint64_t> steps{start > 0 ? start - 1 : 0, start};
    trials.push_back({.spec = spec, .world = 2, .steps = steps});
    if (kSanitized || std::ranges::count(defaults, spec) == 0) continue;
    trials.push_back({.spec = spec, .world = 3, .steps = steps});
    trials.push_back({.spec = spec, .world = 5, .steps = {start}, .every = 7});
    trials.push_back({.spec = spec, .world = 8, .steps = {start}, .every = 29});
  }
  for (const Link& link : {kRingLink, kOwnerLink}) {
    // Segments and pieces whose checksums are messages of their own.
    for (const char* spec : {"fp32", "dqsg:levels=255"}) {
      trials.push_back({.spec = spec,
                        .world = 3,
                        .layout = {.id = 0, .elements = 120'000, .tensors = {}},
                        .link = link,
                        .steps = {0}});
    }
  }
  for (const char* spec : {"fp32", "dqsg", "powersgd", "sketch"}) {
    trials.push_back({.spec = spec, .world = 3, .link = kRingLink, .steps = {0}});
    trials.push_back({.spec = spec, .world = 3, .link = kDirectLink, .steps = {0}});
  }
  // An owner reduction with several pieces per range.
  trials.push_back({.spec = "bf16",
                    .world = 2,
                    .layout = {.id = 0, .elements = 300'000, .tensors = {}},
                    .steps = {0}});
  return trials;
}

INSTANTIATE_TEST_SUITE_P(Laws, AlteredMessage, testing::ValuesIn(altered_trials()), trial_name);

}  // namespace
}  // namespace thinreduce::altered_message_test
