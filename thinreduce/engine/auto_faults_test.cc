// Sessions with the spec `auto` in which a message is lost or altered, or a gradient is NaN, Inf or
// huge.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/auto_world.h"
#include "tests/faulty_transport.h"
#include "tests/session_world.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"
#include "thinreduce/plan/planner.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::auto_faults_test {
namespace {

constexpr std::size_t kLarge = 400'000;  // NaN is looked for during the sum, not before it

// Runs two ranks over threads until the step with the trials; there, an operation of rank 0 fails.
// Returns the number of messages that rank 0 sent in that step without a fault.
std::uint64_t run_with_fault(const Fault& fault) {
  auto transports = connect_threads(2);
  std::barrier together(2);
  std::uint64_t sent = 0;
  std::atomic<int> errors = 0;
  bool struck = false;
  std::vector<std::jthread> ranks;
  for (auto& transport : transports) {
    const bool leads = transport->rank() == 0;
    ranks.emplace_back([&, leads, inner = std::move(transport)]() mutable {
      const auto faulty = std::make_shared<FaultyTransport>(std::move(inner));
      Session session(faulty, {.spec = "auto:methods=topk,error=1000,try=all",
                               .timeout = Seconds{20},
                               .link = Link::parse("1gbit,0.1ms")});
      for (std::uint64_t step = 0; step <= Planner::kFirstSteps + 1; ++step) {
        auto values = gradient(5000, session.rank(), step);
        together.arrive_and_wait();
        if (step <= Planner::kFirstSteps) {
          session.reduce(0, values);
          continue;
        }
        faulty->arm(leads ? fault : Fault{});
        together.arrive_and_wait();
        try {
          session.reduce(0, values);
        } catch (const Error& error) {
          EXPECT_TRUE(error.code() == ErrorCode::bad_frame ||
                      error.code() == ErrorCode::lost_peer || error.code() == ErrorCode::mismatch ||
                      std::string(error.what()).find(kInjected) != std::string::npos)
              << error.what();
          ++errors;
        }
        if (leads) sent = faulty->sends();
        if (leads) struck = faulty->peer() >= 0;
        static_cast<void>(session.save_bytes());
      }
    });
  }
  ranks.clear();
  // A rank may have its mean when the last message to the other is lost. The reduce after the
  // trials may have fewer messages than in another run.
  EXPECT_EQ(errors > 0, struck);
  return sent;
}

TEST(Auto, AFaultDuringTheTrialsIsNoticed) {
  const std::uint64_t messages = run_with_fault({});
  ASSERT_GT(messages, 10);
  for (std::uint64_t k = 0; k < messages; k += 3) {
    SCOPED_TRACE(k);
    run_with_fault({FaultKind::flipped_bit, k, k * 2654435761U});
    run_with_fault({FaultKind::lost_send, k, 0});
  }
}

TEST(Auto, ANanInTheStepThatKeepsSamplesEndsNothing) {
  on_cluster("10mbit,1ms", 2, {.spec = "auto"}, [](Session& session) {
    int errors = 0;
    for (std::uint64_t step = 0; step < 8; ++step) {
      auto values = gradient(kLarge, session.rank(), step);
      if (step == Planner::kFirstSteps) std::fill(values.begin(), values.end(), NAN);
      try {
        session.reduce(0, values);
      } catch (const Error& error) {
        EXPECT_TRUE(error.is_nonfinite()) << error.what();
        ++errors;
      }
    }
    EXPECT_EQ(errors, 1);
    EXPECT_GE(session.plan().trials, 1);
  });
}

// The sample of a step with a huge gradient must not end the session in the trials.
TEST(Auto, AHugeGradientEndsNothing) {
  for (std::uint64_t spiked = 0; spiked <= Planner::kFirstSteps; ++spiked) {
    on_cluster("10mbit,1ms", 2, {.spec = "auto:error=1000"}, [&](Session& session) {
      for (std::uint64_t step = 0; step < 8; ++step) {
        auto values = gradient(kElements, session.rank(), step);
        if (step == spiked) {
          for (float& value : values) value *= 1e37F;
        }
        session.reduce(0, values);
        ASSERT_TRUE(std::ranges::all_of(values, [](float value) { return std::isfinite(value); }));
      }
      EXPECT_EQ(session.plan().trials, 1);
    });
  }
}

// When a bucket changes from topk to fp32, its first fp32 step adds what topk still owed. Inf in
// that step must be the error that it is in any other.
TEST(Auto, InfIsAnErrorInTheStepAfterAChangeOfTheMethod) {
  const std::string spec = "auto:methods=topk,error=1000";
  constexpr std::uint64_t kSlow = 6;
  std::vector<std::vector<std::byte>> states(2);
  on_cluster("5mbit,1ms", 2, {.spec = spec}, [&](Session& session) {
    for (std::uint64_t step = 0; step < kSlow; ++step) {
      auto values = gradient(kLarge, session.rank(), step);
      session.reduce(3, values);
    }
    ASSERT_TRUE(session.plan().buckets.at(0).spec.starts_with("topk"));
    states[static_cast<std::size_t>(session.rank())] = session.save_bytes();
  });
  // The change comes in the call after the one whose sample is tried, which must not fail. So in
  // one of the two runs it comes in a call with Inf, and in the other there is no change.
  std::atomic<int> changed = 0;
  for (const std::uint64_t odd : {0, 1}) {
    on_cluster("unlimited", 2, {.spec = spec}, [&](Session& session) {
      session.load_bytes(states[static_cast<std::size_t>(session.rank())]);
      for (std::uint64_t call = 0; call < 12; ++call) {
        auto values = gradient(kLarge, session.rank(), kSlow + call);
        const bool bad = call % 2 == odd;
        if (bad && session.rank() == 1) values[7] = std::numeric_limits<float>::infinity();
        bool failed = false;
        try {
          session.reduce(3, values);
        } catch (const Error& error) {
          EXPECT_TRUE(error.is_nonfinite()) << error.what();
          failed = true;
        }
        EXPECT_EQ(failed, bad) << "call " << call;
      }
      if (session.plan().buckets.at(0).spec == "fp32") ++changed;
    });
  }
  EXPECT_EQ(changed, 2) << "both ranks of one run";
}

}  // namespace
}  // namespace thinreduce::auto_faults_test
