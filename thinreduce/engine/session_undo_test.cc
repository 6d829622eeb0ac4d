// A step that is taken back, and buckets that are dropped.
#include <gtest/gtest.h>

#include <barrier>
#include <limits>

#include "tests/ranks.h"
#include "tests/session_world.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"

namespace thinreduce::session_undo_test {
namespace {

class SessionUndo : public Sessions {};
INSTANTIATE_TEST_SUITE_P(All, SessionUndo, testing::ValuesIn(every_method_and_world()),
                         session_case_name);

// Reduces two buckets and returns both means.
std::vector<float> reduce_step(Session& session, std::uint64_t step) {
  auto result = gradient(5000, session.rank(), step);
  session.reduce(0, result);
  auto second = gradient(3000, session.rank(), step + 100);
  session.reduce(1, second);
  result.insert(result.end(), second.begin(), second.end());
  return result;
}

TEST_P(SessionUndo, AStepThatWasTakenBackLeavesNoTrace) {
  const std::uint64_t end = steps(3);
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = spec(), .momentum_inside_ok = true});
    std::vector<std::vector<float>> means;
    for (std::uint64_t step = 0; step < end; ++step) {
      session.begin_step();
      means.push_back(reduce_step(session, step));
    }
    const auto straight = session.save_bytes();
    session.forget(0);
    session.forget(1);
    for (std::uint64_t step = 0; step < end; ++step) {
      session.begin_step();
      (void)reduce_step(session, 1000 + step);
      // The second bucket is refused after the first was reduced.
      auto bad = gradient(3000, session.rank(), step);
      if (session.rank() == 0) bad[17] = std::numeric_limits<float>::infinity();
      thrown_text(ErrorCode::bad_input, [&] { session.reduce(1, bad); });
      session.undo_step();
      session.begin_step();
      EXPECT_EQ(reduce_step(session, step), means[step]) << step;
    }
    EXPECT_EQ(session.save_bytes(), straight);
  });
}

TEST(SessionUndoes, WithoutABeginningNothingIsTakenBack) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk"});
    (void)reduce_step(session, 0);
    const auto before = session.save_bytes();
    session.undo_step();
    EXPECT_EQ(session.save_bytes(), before);
    session.begin_step();
    session.undo_step();
    EXPECT_EQ(session.save_bytes(), before);
  });
}

// A bucket whose agreement fails keeps its gradient for a later session, unless the step is taken
// back.
TEST(SessionUndoes, WhatAFailedAgreementHasKeptIsTakenBack) {
  std::barrier both_reduced(2);
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk"});
    (void)reduce_step(session, 0);
    const auto before = session.save_bytes();
    session.begin_step();
    both_reduced.arrive_and_wait();
    if (session.rank() == 1) return session.abandon("test");
    auto values = gradient(5000, 0, 1);
    thrown_text(ErrorCode::lost_peer, [&] { session.reduce(0, values); });
    EXPECT_NE(session.save_bytes(), before) << "nothing was kept";
    session.undo_step();
    EXPECT_EQ(session.save_bytes(), before);
  });
}

TEST(SessionUndoes, AForgottenBucketMayHaveAnotherLayout) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk"});
    const auto empty = session.save_bytes();
    (void)reduce_step(session, 0);
    session.forget(0);
    session.forget(1);
    EXPECT_EQ(session.save_bytes(), empty);
    auto other = gradient(7000, session.rank(), 0);
    EXPECT_EQ(session.reduce(0, other).step, 1U);
  });
}

TEST(SessionNames, BucketsOfTheSameSizeAreToldApartByTheirNames) {
  const auto thrown = try_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk"});
    auto values = gradient(4000, session.rank(), 0);
    const std::string name = session.rank() == 0 ? "a" : "b";
    const auto bucket = session.add_bucket({.elements = 4000, .tensors = {}, .name = name});
    session.submit(bucket, values).get();
  });
  for (const auto& one : thrown) {
    EXPECT_NE(error_text(one, ErrorCode::mismatch).find("layout"), std::string::npos);
  }
}

TEST(SessionNames, NanIsFoundInItsTensor) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk"});
    const auto bucket = session.add_bucket(mixed_layout(3));
    auto values = gradient(bucket.layout().elements, session.rank(), 0);
    if (session.rank() == 1) values[16 * 8 * 9 + 3] = std::numeric_limits<float>::quiet_NaN();
    try {
      session.submit(bucket, values).get();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_TRUE(error.is_nonfinite());
      EXPECT_NE(std::string(error.what()).find("index 1155 (element 3 of tensor 'conv.bias')"),
                std::string::npos)
          << error.what();
    }
  });
}

TEST(SessionNames, SettingsOfTheCallerAreComparedByName) {
  const auto thrown = try_ranks(3, [](std::unique_ptr<Transport> transport) {
    const std::string settings = transport->rank() == 2 ? "a=1 b=3" : "a=1 b=2";
    Session session(std::move(transport), {.spec = "topk", .caller_settings = settings});
  });
  for (const auto& one : thrown) {
    EXPECT_NE(error_text(one, ErrorCode::mismatch).find(": b=2 on rank 0, b=3 on rank 2;"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace thinreduce::session_undo_test
