// Bad input and lost ranks: one clear error on all ranks, and nothing lost.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <limits>
#include <list>
#include <new>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "tests/faulty_transport.h"
#include "tests/links.h"
#include "tests/ranks.h"
#include "tests/session_world.h"
#include "tests/tracks.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"

namespace thinreduce {
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

TEST(SessionErrors, DifferentSpecsAreNamedOnAllRanks) {
  const auto thrown = try_ranks(3, [](std::unique_ptr<Transport> transport) {
    const bool odd = transport->rank() == 1;
    Session session(std::move(transport), {.spec = odd ? "topk:density=0.5" : "topk"});
  });
  for (const auto& one : thrown) {
    const auto text = error_text(one, ErrorCode::mismatch);
    EXPECT_NE(text.find("topk:chunk=auto,collective=auto,decay=1,density=0.1"), std::string::npos)
        << text;
    EXPECT_NE(text.find("rank 1 runs 'topk:chunk=auto,collective=auto,decay=1,density=0.5"),
              std::string::npos)
        << text;
  }
}

// Settings and the measurement of the link.
TEST(SessionErrors, AnAlteredMessageWhileASessionStartsIsNamedOnAllRanks) {
  const auto start = [](std::uint64_t number) {
    return try_ranks(3, [number](std::unique_ptr<Transport> transport) {
      const bool alters = transport->rank() == 1 && number > 0;
      const auto faulty = std::make_shared<FaultyTransport>(std::move(transport));
      if (alters) faulty->arm({FaultKind::flipped_bit, number - 1, 77});
      const Session session(faulty, {.spec = "dqsg"});
    });
  };
  for (const auto& thrown : start(0)) ASSERT_FALSE(thrown);
  for (std::uint64_t number = 1; number <= 12; ++number) {
    SCOPED_TRACE(number);
    int refused = 0;
    for (const auto& thrown : start(number)) {
      ASSERT_TRUE(thrown);
      try {
        std::rethrow_exception(thrown);
      } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_TRUE(text.find("from rank 1") != text.npos || text.find("of rank 1") != text.npos)
            << text;
        if (error.code() == ErrorCode::bad_frame) ++refused;
      }
    }
    EXPECT_EQ(refused, 1);
  }
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

TEST(SessionErrors, TimesThatMakeNoSenseAreRefusedAndForeverIsAllowed) {
  const auto open = [](Seconds timeout, Seconds patience) {
    auto ranks = connect_threads(1);
    const Session session(std::move(ranks[0]), {.timeout = timeout, .patience = patience});
  };
  const Seconds nan(std::numeric_limits<double>::quiet_NaN());
  const Seconds forever(std::numeric_limits<double>::infinity());
  for (const Seconds bad : {nan, Seconds(-1)}) {
    EXPECT_NE(thrown_text(ErrorCode::bad_input, [&] { open(bad, 1s); }).find("timeout is"),
              std::string::npos);
    EXPECT_NE(thrown_text(ErrorCode::bad_input, [&] { open(1s, bad); }).find("patience is"),
              std::string::npos);
  }
  run_ranks(2, [&](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.timeout = forever, .patience = forever});
    std::vector<float> values(5000);
    if (session.rank() == 1) std::this_thread::sleep_for(50ms);
    EXPECT_NO_THROW(session.reduce(0, values));
  });
}

// A rank that refuses its own bucket must not leave the others waiting.
TEST(SessionErrors, ARefusedBucketIsAnErrorOnAllRanksAndTheSessionGoesOn) {
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
TEST(SessionErrors, ABucketThatARankDeclinesIsAnErrorOfTheOthersAndTheSessionGoesOn) {
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
        EXPECT_NE(text.find("bucket 6: the program could not submit it on rank 1"),
                  std::string::npos)
            << text;
        EXPECT_EQ(values, gradient(4000, session.rank(), 0));
      }
      EXPECT_EQ(good.get().step, round);
      EXPECT_EQ(session.submit(first, values).get().step, round);
    }
  });
}

// The others may do something else instead: a rank that refuses and leaves does not wait for them.
TEST(SessionErrors, ARankThatHasRefusedCanLeave) {
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

TEST(SessionErrors, DecliningEndsASessionWithAPlanner) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "auto"});
    std::vector<float> values(5000);
    if (session.rank() == 1) return session.decline("nothing to submit");
    const auto text = thrown_text(ErrorCode::lost_peer, [&] { session.reduce(0, values); });
    EXPECT_NE(text.find("rank 1 gave up: nothing to submit"), std::string::npos) << text;
  });
}

TEST(SessionErrors, ABucketThatDoesNotFitItsTensorsIsRefused) {
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

TEST(SessionErrors, AHandleServesTheSessionThatMadeIt) {
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

TEST(SessionErrors, UnknownSpecsAreRefusedWithWhatExists) {
  const auto refused = [](const std::string& spec) {
    auto thrown = try_ranks(1, [&](std::unique_ptr<Transport> transport) {
      Session session(std::move(transport), {.spec = spec});
    });
    return error_text(thrown[0], ErrorCode::bad_spec);
  };
  EXPECT_NE(refused("topq").find("fp32, bf16, "), std::string::npos);
  EXPECT_NE(refused("topk:k=3").find("density"), std::string::npos);
  EXPECT_NE(refused("topk:density=2").find("got '2'"), std::string::npos);
}

// An update with momentum inside, given to an optimizer with momentum, would be a silent mistake.
TEST(SessionErrors, MomentumInsideMustBeAcknowledged) {
  const auto open = [](const SessionOptions& options) {
    auto ranks = connect_threads(1);
    Session session(std::move(ranks[0]), options);
  };
  const auto text =
      thrown_text(ErrorCode::bad_spec, [&] { open({.spec = "sketch:momentum=0.8"}); });
  EXPECT_NE(text.find("momentum_inside_ok"), std::string::npos) << text;
  EXPECT_NE(text.find("sketch:momentum=0"), std::string::npos) << text;
  EXPECT_NO_THROW(open({.spec = "sketch:momentum=0.8", .momentum_inside_ok = true}));
  EXPECT_NO_THROW(open({.spec = "sketch"}));
  EXPECT_NO_THROW(open({.spec = "powersgd"}));
}

// Throws whatever it is told to when data is sent.
class Broken final : public Transport {
 public:
  Broken(std::unique_ptr<Transport> inner, std::function<void()> fail)
      : inner_(std::move(inner)), fail_(std::move(fail)) {}
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

 private:
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    if (track_carrying_data(channel) > 0 && message.size() > 4000) fail_();
    return inner_->send(peer, channel, message);
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return inner_->receive(peer, channel, message);
  }

  std::unique_ptr<Transport> inner_;
  std::function<void()> fail_;
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

// Flips a bit of every message that it sends.
class Flipping final : public Transport {
 public:
  explicit Flipping(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

 private:
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    auto& sent = sent_.emplace_back(message.begin(), message.end());
    if (!sent.empty()) sent.back() ^= std::byte{1};
    return inner_->send(peer, channel, sent);
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return inner_->receive(peer, channel, message);
  }

  std::list<std::vector<std::byte>> sent_;
  std::unique_ptr<Transport> inner_;
};

TEST(SessionErrors, AlteredBytesAtTheStartSayWhatToDo) {
  const auto thrown = try_ranks(2, [](std::unique_ptr<Transport> transport) {
    if (transport->rank() == 1) transport = std::make_unique<Flipping>(std::move(transport));
    const Session session(std::move(transport), {.patience = 60s});
  });
  const auto text = error_text(thrown[0], ErrorCode::bad_frame);
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("run the same build over a network that alters nothing"), std::string::npos)
      << text;
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
}  // namespace thinreduce
