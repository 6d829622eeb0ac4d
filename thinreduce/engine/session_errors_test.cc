// Bad gradients, lost ranks and bugs: one clear error on all ranks, and nothing lost.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/links.h"
#include "tests/ranks.h"
#include "tests/session_world.h"
#include "tests/tracks.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"

namespace thinreduce::session_errors_test {
namespace {

using namespace std::chrono_literals;

TEST(SessionErrors, NanIsNamedOnAllRanksAndNothingIsTouched) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk:density=0.01"});
    auto good = gradient(4000, session.rank(), 0);
    session.reduce(2, good);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      auto values = gradient(4000, session.rank(), 1);
      if (session.rank() == 1) values[1234] = bad;
      const auto before = values;
      const auto text = thrown_text(ErrorCode::bad_input, [&] { session.reduce(2, values); });
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find("bucket 2"), std::string::npos) << text;
      EXPECT_NE(text.find("index 1234"), std::string::npos) << text;
      EXPECT_EQ(std::memcmp(values.data(), before.data(), values.size() * sizeof(float)), 0);
    }
    // The session goes on, with the step it would have had.
    auto next = gradient(4000, session.rank(), 1);
    EXPECT_EQ(session.reduce(2, next).step, 2U);
  });
}

TEST(SessionErrors, ABadSecondMomentIsNamedOnAllRanksByMethodsThatReadIt) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "variance"});
    const auto bucket = session.add_bucket({.id = 2, .elements = 4000, .tensors = {}});
    auto good = gradient(4000, session.rank(), 0);
    std::vector<float> moment(4000, 0.01F);
    EXPECT_EQ(session.submit(bucket, good, moment).get().statistics.at("per_sample"), 1);
    for (const float bad :
         {-1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      auto values = gradient(4000, session.rank(), 1);
      if (session.rank() == 1) moment[1234] = bad;
      const auto before = values;
      const auto text =
          thrown_text(ErrorCode::bad_input, [&] { session.submit(bucket, values, moment).get(); });
      EXPECT_NE(text.find("second moment of rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find("index 1234"), std::string::npos) << text;
      EXPECT_EQ(values, before);
    }
    // One rank without is no disagreement: it only decides what that rank itself sends.
    moment[1234] = 0.01F;
    auto next = gradient(4000, session.rank(), 1);
    const std::span<const float> none;
    EXPECT_EQ(session.submit(bucket, next, session.rank() == 1 ? none : moment).get().step, 2U);
  });
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk"});
    auto values = gradient(4000, session.rank(), 0);
    const std::vector<float> unread(4000, -1.0F);
    const auto bucket = session.add_bucket({.id = 2, .elements = 4000, .tensors = {}});
    EXPECT_NO_THROW(session.submit(bucket, values, unread).get());
  });
}

TEST(SessionErrors, NanInALargeUncompressedBucketIsNamedOnAllRanks) {
  constexpr std::size_t kSize = 300'007;  // over 1 MiB: looked for while the sum is made
  for (const int world : {1, 3}) {
    run_ranks(world, [&](std::unique_ptr<Transport> transport) {
      Session session(std::move(transport), {.spec = "topk:density=0.01", .warmup_steps = 2});
      for (const std::size_t place : {std::size_t{0}, std::size_t{123'456}, kSize - 1}) {
        auto values = gradient(kSize, session.rank(), 0);
        if (session.rank() == world - 1) {
          values[place] = std::numeric_limits<float>::infinity();
          values[kSize - 1] = std::numeric_limits<float>::quiet_NaN();
        }
        const auto text = thrown_text(ErrorCode::bad_input, [&] { session.reduce(2, values); });
        EXPECT_NE(text.find(fmt::format("rank {} is NaN or Inf at index {};", world - 1, place)),
                  std::string::npos)
            << text;
      }
      auto next = gradient(kSize, session.rank(), 1);
      EXPECT_EQ(session.reduce(2, next).step, 1U);
    });
  }
}

TEST(SessionErrors, DifferentSizesAreNamedOnAllRanksAndCanBeMended) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    std::vector<float> wrong(session.rank() == 2 ? 1001 : 1000, 1.0F);
    const auto text = thrown_text(ErrorCode::mismatch, [&] { session.reduce(0, wrong); });
    EXPECT_NE(text.find("1000 on rank 0 and 1001 on rank 2"), std::string::npos) << text;
    std::vector<float> right(1000, static_cast<float>(session.rank()));
    session.reduce(0, right);
    EXPECT_EQ(right[999], 1.0F);
    // From now on bucket 0 has 1000 elements, whether one rank says otherwise or all.
    std::vector<float> odd(session.rank() == 2 ? 1001 : 1000, 1.0F);
    thrown_text(ErrorCode::mismatch, [&] { session.reduce(0, odd); });
    std::vector<float> longer(1001, 1.0F);
    const auto changed = thrown_text(ErrorCode::bad_input, [&] { session.reduce(0, longer); });
    EXPECT_NE(changed.find("1000 elements then, 1001 now"), std::string::npos) << changed;
    session.reduce(0, right);
  });
}

TEST(SessionErrors, DifferentOrderIsNamed) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    std::vector<float> values(10);
    const auto text = thrown_text(ErrorCode::mismatch, [&] {
      session.reduce(static_cast<std::uint32_t>(session.rank()), values);
    });
    EXPECT_NE(text.find("same order"), std::string::npos) << text;
  });
}

TEST(SessionErrors, DriftedReplicasAreNoticed) {
  const Folder folder;
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    std::vector<float> values(2000, 1.0F);
    session.reduce(0, values);
    if (session.rank() == 0) session.save(state_path(folder, 0));
    session.reduce(0, values);
    if (session.rank() == 1) session.save(state_path(folder, 1));
  });
  // The two ranks resume from different steps.
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32"});
    session.load(state_path(folder, session.rank()));
    std::vector<float> values(2000, 1.0F);
    const auto text = thrown_text(ErrorCode::mismatch, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("step is 1 on rank 0 and 2 on rank 1"), std::string::npos) << text;
  });
}

TEST(SessionErrors, ALostRankEndsAllOthersAndEveryLaterCallSaysSo) {
  run_ranks(3, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32", .timeout = 20s});
    std::vector<float> values(50'000);
    session.reduce(0, values);
    if (session.rank() == 1) return;  // leaves in the middle of training
    auto text = thrown_text(ErrorCode::lost_peer, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    text = thrown_text(ErrorCode::lost_peer, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    EXPECT_THROW(session.finish_step(), Error);
  });
}

TEST(SessionErrors, PatienceEndsWithAnErrorThatNamesTheRankAndTheOption) {
  std::atomic<bool> ended = false;
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    const Seconds patience(transport->rank() == 0 ? 0.2 : 60);
    Session session(std::move(transport), {.spec = "fp32", .patience = patience});
    std::vector<float> values(50'000);
    if (session.rank() == 1) {
      while (!ended) std::this_thread::sleep_for(1ms);
      return;
    }
    const auto text = thrown_text(ErrorCode::timeout, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("rank 1, which is alive"), std::string::npos) << text;
    EXPECT_NE(text.find("raise patience"), std::string::npos) << text;
    ended = true;
  });
}

TEST(SessionErrors, ARankThatComputesForLongIsNotSilent) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32", .timeout = Seconds(0.1)});
    std::vector<float> values(5000, static_cast<float>(session.rank()));
    if (session.rank() == 1) std::this_thread::sleep_for(500ms);
    session.reduce(0, values);
    EXPECT_EQ(values[4999], 0.5F);
  });
}

// Throws whatever it is told to when a bucket's data is sent, or with anything that is sent once
// `armed` is true.
class Broken final : public Transport {
 public:
  Broken(std::unique_ptr<Transport> inner, std::function<void()> fail,
         const std::atomic<bool>* armed = nullptr)
      : inner_(std::move(inner)), fail_(std::move(fail)), armed_(armed) {}
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

 private:
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    const bool is_data = track_carrying_data(channel) > 0 && message.size() > 4000;
    if (armed_ != nullptr ? armed_->load() : is_data) fail_();
    return inner_->send(peer, channel, message);
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return inner_->receive(peer, channel, message);
  }

  std::unique_ptr<Transport> inner_;
  std::function<void()> fail_;
  const std::atomic<bool>* armed_;
};

TEST(SessionErrors, ABugAndAMemoryThatIsFullAreReportedAsWhatTheyAre) {
  const std::vector<std::tuple<std::function<void()>, ErrorCode, std::string>> cases = {
      {[] { throw BrokenInvariant("one is two"); }, ErrorCode::internal, "one is two"},
      {[] { throw std::out_of_range("at"); }, ErrorCode::internal, "please report it: at"},
      {[] { throw std::bad_alloc(); }, ErrorCode::unavailable, "out of memory"}};
  for (const auto& [fail, code, expected] : cases) {
    run_ranks(2, [&](std::unique_ptr<Transport> transport) {
      const bool broken = transport->rank() == 1;
      if (broken) transport = std::make_unique<Broken>(std::move(transport), fail);
      Session session(std::move(transport), {.spec = "fp32", .timeout = 20s, .link = kRingLink});
      std::vector<float> values(50'000);
      // Every later call repeats the error; the other rank has lost this one, and knows why.
      for (int call = 0; call < 2; ++call) {
        const auto text =
            thrown_text(broken ? code : ErrorCode::lost_peer, [&] { session.reduce(7, values); });
        EXPECT_NE(text.find("bucket 7"), std::string::npos) << text;
        EXPECT_NE(text.find(expected), std::string::npos) << text;
      }
    });
  }
}

void throw_bug() {
  throw BrokenInvariant("one is two");
}

// An exception that is no Error must not leave the other ranks waiting, whichever call it ends.
TEST(SessionErrors, ABugBesideBucketsEndsTheSessionOfAllRanks) {
  const std::vector<std::function<void(Session&)>> calls = {
      [](Session& session) { session.commit_step(false); },
      [](Session& session) {
        std::vector<std::byte> message(3);
        session.broadcast(1, message);
      }};
  for (const auto& call : calls) {
    std::atomic<bool> armed = false;
    run_ranks(2, [&](std::unique_ptr<Transport> transport) {
      const bool broken = transport->rank() == 1;
      if (broken) transport = std::make_unique<Broken>(std::move(transport), throw_bug, &armed);
      Session session(std::move(transport), {.spec = "fp32"});
      std::vector<float> values(100);
      session.reduce(0, values);
      if (broken) armed = true;
      const ErrorCode code = broken ? ErrorCode::internal : ErrorCode::lost_peer;
      for (const auto& text : {thrown_text(code, [&] { call(session); }),
                               thrown_text(code, [&] { session.reduce(0, values); })}) {
        EXPECT_NE(text.find("one is two"), std::string::npos) << text;
      }
    });
  }
}

// The bug comes with every message of rank 1 in turn: those with which a session starts, then those
// with which it goes on from an earlier one.
TEST(SessionErrors, ABugAtTheStartOfASessionOrOfANewWorldIsToldToAllRanks) {
  const std::atomic<bool> armed = true;
  std::string texts;
  bool failed = true;
  for (int bad = 0; failed; ++bad) {
    std::atomic<int> sent = 0;
    const auto fail = [&] {
      if (sent++ == bad) throw_bug();
    };
    auto next_world = connect_threads(2);
    next_world[1] = std::make_unique<Broken>(std::move(next_world[1]), fail, &armed);
    std::vector<std::optional<Error>> errors(2);
    run_ranks(2, [&](std::unique_ptr<Transport> transport) {
      const auto rank = static_cast<std::size_t>(transport->rank());
      Session session(std::move(transport), {.spec = "fp32"});
      try {
        session.reconfigure(std::shared_ptr<Transport>(std::move(next_world[rank])));
      } catch (const Error& error) {
        errors[rank] = error;
      }
    });
    failed = sent > bad;
    ASSERT_EQ(errors[0].has_value(), failed);
    ASSERT_EQ(errors[1].has_value(), failed);
    if (!failed) break;
    EXPECT_EQ(errors[0]->code(), ErrorCode::lost_peer);
    EXPECT_EQ(errors[1]->code(), ErrorCode::internal);
    for (const auto& error : errors) {
      EXPECT_THAT(error->what(), testing::HasSubstr("one is two")) << "message " << bad;
    }
    texts += errors[1]->what();
  }
  EXPECT_THAT(texts, testing::HasSubstr("the start of a session"));
  EXPECT_THAT(texts, testing::HasSubstr("a change of the world"));
}

TEST(SessionErrors, AbandonEndsItOnAllRanks) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "fp32", .timeout = 60s});
    std::vector<float> values(5000);
    if (session.rank() == 1) {
      session.abandon("enough");
      const auto text = thrown_text(ErrorCode::lost_peer, [&] { session.reduce(0, values); });
      EXPECT_EQ(text, "rank 1 gave up: enough");
      return;
    }
    const auto text = thrown_text(ErrorCode::lost_peer, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("rank 1 gave up: enough"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace thinreduce::session_errors_test
