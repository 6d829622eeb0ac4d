// Buckets that a rank refuses or declines: an error on all ranks, and the session goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/ranks.h"
#include "tests/session_world.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"

namespace thinreduce::session_refusals_test {
namespace {

using namespace std::chrono_literals;

TEST(SessionRefusals, ABucketThatDoesNotFitItsTensorsIsRefused) {
  run_ranks(1, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    std::vector<float> values(10);
    const auto text_of = [&](std::vector<Tensor> tensors, std::size_t elements) {
      const BucketLayout layout{.id = 3, .elements = elements, .tensors = std::move(tensors)};
      return thrown_text(ErrorCode::bad_input,
                         [&] { (void)session.submit(session.add_bucket(layout), values); });
    };
    EXPECT_NE(text_of({}, 11).find("submit() got 10 values, but the bucket has 11"),
              std::string::npos);
    EXPECT_NE(text_of({{.name = "w", .shape = {3, 4}}}, 10).find("'w'"), std::string::npos);
    EXPECT_NE(text_of({{.name = "w", .shape = {3, 3}}}, 10).find("9 elements"), std::string::npos);
    EXPECT_NE(text_of({{.name = "w", .shape = {-1, 10}}}, 10).find("-1"), std::string::npos);
    EXPECT_NE(text_of({{.name = "w", .shape = {1LL << 40, 1LL << 40}}}, 10).find("'w'"),
              std::string::npos);
    EXPECT_NE(text_of({{.name = "w", .shape = {10}, .offset = 1}}, 10).find("offset 1"),
              std::string::npos);
    // Nothing at all is fine.
    std::vector<float> nothing;
    EXPECT_EQ(session.reduce(4, nothing).elements, 0U);
  });
}

TEST(SessionRefusals, AHandleServesTheSessionThatMadeIt) {
  run_ranks(1, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    auto ranks = connect_threads(1);
    Session other(std::move(ranks[0]), {.spec = "topk"});
    std::vector<float> values(10);
    const auto bucket = other.add_bucket({.id = 5, .elements = 10, .tensors = {}});
    const auto text =
        thrown_text(ErrorCode::bad_input, [&] { (void)session.submit(bucket, values); });
    EXPECT_NE(text.find("bucket 5: its handle is from another session"), std::string::npos) << text;
    EXPECT_EQ(other.submit(bucket, values).get().step, 1U);
  });
}

// A rank that refuses its own bucket must not leave the others waiting.
TEST(SessionRefusals, ARefusedBucketIsAnErrorOnAllRanksAndTheSessionGoesOn) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk"});
    auto others = connect_threads(1);
    Session foreign(std::move(others[0]), {.spec = "topk"});
    const BucketLayout layout{.id = 6, .elements = 4000, .tensors = {}};
    const auto bucket = session.add_bucket(layout);
    const auto unknown = foreign.add_bucket(layout);
    const bool refuses = session.rank() == 1;
    std::vector<float> values(4000, 1.0F);
    const std::vector<float> moment(3999);
    const auto expect_refused = [&](const std::string& reason, const auto& submit) {
      const auto text = thrown_text(ErrorCode::bad_input, [&] {
        (refuses ? submit() : session.submit(bucket, values)).get();
      });
      EXPECT_NE(text.find(reason), std::string::npos) << text;
      EXPECT_EQ(text.find("bucket 6, rank 1: ") == std::string::npos, refuses) << text;
    };
    for (int round = 0; round < 2; ++round) {
      expect_refused("submit() got 3999 values, but the bucket has 4000 elements",
                     [&] { return session.submit(bucket, std::span(values).first(3999)); });
      expect_refused("the second moment has 3999 values, the bucket 4000 elements",
                     [&] { return session.submit(bucket, values, moment); });
      expect_refused("its handle is from another session",
                     [&] { return session.submit(unknown, values); });
      auto next = gradient(4000, session.rank(), 0);
      EXPECT_EQ(session.submit(bucket, next).get().step, static_cast<std::uint64_t>(round) + 1);
    }
  });
}

// A caller may find its own error before it can submit anything; the others wait for it then.
TEST(SessionRefusals, ABucketThatARankDeclinesIsAnErrorOfTheOthersAndTheSessionGoesOn) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk"});
    const auto first = session.add_bucket({.id = 6, .elements = 4000, .tensors = {}});
    const auto second = session.add_bucket({.id = 7, .elements = 3000, .tensors = {}});
    for (std::uint64_t round = 1; round <= 3; ++round) {
      auto values = gradient(4000, session.rank(), 0);
      auto others = gradient(3000, session.rank(), 1);
      // In flight with a bucket that all ranks submit.
      auto good = session.submit(second, others);
      if (session.rank() == 1) {
        session.decline("no");
      } else {
        const auto text =
            thrown_text(ErrorCode::bad_input, [&] { session.submit(first, values).get(); });
        EXPECT_NE(text.find("bucket 6: rank 1 did not submit this bucket"), std::string::npos)
            << text;
        EXPECT_EQ(values, gradient(4000, session.rank(), 0));
      }
      EXPECT_EQ(good.get().step, round);
      EXPECT_EQ(session.submit(first, values).get().step, round);
    }
  });
}

// The others may do something else instead: a rank that refuses and leaves does not wait for them.
TEST(SessionRefusals, ARankThatHasRefusedCanLeave) {
  for (const bool declines : {false, true}) {
    std::atomic<bool> left = false;
    run_ranks(2, [&](std::unique_ptr<Transport> transport) {
      auto session = std::make_unique<Session>(std::move(transport), SessionOptions{});
      std::vector<float> values(5000);
      if (session->rank() == 1) {
        const auto bucket = session->add_bucket({.id = 0, .elements = 4000, .tensors = {}});
        if (declines) {
          session->decline("4000 values are missing");
        } else {
          EXPECT_THROW((void)session->submit(bucket, values), Error);
        }
        session.reset();
        left = true;
        return;
      }
      while (!left) std::this_thread::sleep_for(1ms);
      const auto text = thrown_text(ErrorCode::lost_peer, [&] { session->reduce(0, values); });
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find("4000"), std::string::npos) << text;
    });
  }
}

TEST(SessionRefusals, DecliningEndsASessionWithAPlanner) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "auto"});
    std::vector<float> values(5000);
    if (session.rank() == 1) return session.decline("nothing to submit");
    const auto text = thrown_text(ErrorCode::lost_peer, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("rank 1 gave up: nothing to submit"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace thinreduce::session_refusals_test
