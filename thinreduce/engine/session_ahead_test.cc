// Statements run ahead: while a bucket is reduced, those of the next buckets are sent. And what a
// forked child may do with a session.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "tests/ranks.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"
#include "thinreduce/transport/throttle.h"

namespace thinreduce {
namespace {

using namespace std::chrono_literals;

// Counts what happened; other threads wait for it.
class Counter {
 public:
  void count() {
    const std::lock_guard lock(mutex_);
    ++counted_;
    changed_.notify_all();
  }
  // Returns whether it was counted so often before a generous deadline.
  bool await(int often) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 60s, [&] { return counted_ >= often; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int counted_ = 0;
};

struct Calls {
  std::function<void()> on_statement;
  std::function<void()> on_send;     // of data, before it
  std::function<void()> on_receive;  // of data, when it starts
};

// Reports what its session sends and receives.
class Watched final : public Transport {
 public:
  Watched(std::unique_ptr<Transport> inner, Calls calls)
      : inner_(std::move(inner)), calls_(std::move(calls)) {}
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }
  void when_woken(std::function<void()> work) override { inner_->when_woken(std::move(work)); }
  void wake() noexcept override { inner_->wake(); }

 private:
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    if (channel == Channel::data) calls_.on_send();
    auto pending = inner_->send(peer, channel, message);
    if (channel == Channel::agreement) calls_.on_statement();
    return pending;
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    if (channel == Channel::data) calls_.on_receive();
    return inner_->receive(peer, channel, message);
  }

  std::unique_ptr<Transport> inner_;
  Calls calls_;
};

// Rank 1 holds back the data of bucket 0 until rank 0 has sent its statement about bucket 1, which
// rank 0 submits only when it already waits for that data.
TEST(SessionAhead, AStatementIsSentWhileTheWorkerWaitsForAnEarlierBucket) {
  for (const bool slow : {false, true}) {
    Counter statements;
    Counter receives;
    run_ranks(2, [&](std::unique_ptr<Transport> transport) {
      if (slow) transport = throttle(std::move(transport), Link::parse("unlimited,1ms"));
      bool gate = false;
      Calls calls{[] {}, [] {}, [] {}};
      if (transport->rank() == 0) {
        calls.on_statement = [&] { statements.count(); };
        calls.on_receive = [&] {
          if (gate) receives.count();
        };
      } else {
        calls.on_send = [&] {
          if (std::exchange(gate, false)) {
            EXPECT_TRUE(statements.await(2));
          }
        };
      }
      Session session(std::make_unique<Watched>(std::move(transport), calls), {.spec = "fp32"});
      gate = true;
      std::vector<float> first(50'000);
      std::vector<float> second(50'000);
      const auto submit = [&](std::uint32_t id, std::span<float> values) {
        const BucketLayout layout{.id = id, .elements = values.size(), .tensors = {}};
        return session.submit(session.add_bucket(layout), values);
      };
      auto done = submit(0, first);
      if (session.rank() == 0) {
        EXPECT_TRUE(receives.await(1));
      }
      auto done_too = submit(1, second);
      EXPECT_NO_THROW(done.get());
      EXPECT_NO_THROW(done_too.get());
    });
  }
}

TEST(SessionAhead, AForkedChildLeavesTheSessionAlone) {
  run_ranks(1, [](std::unique_ptr<Transport> transport) {
    auto session = std::make_unique<Session>(std::move(transport), SessionOptions{});
    std::vector<float> values(100);
    session->reduce(0, values);
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 1;
      try {
        session->reduce(0, values);
      } catch (const Error& error) {
        const bool says_why = std::string(error.what()).find("forked child") != std::string::npos;
        code = error.code() == ErrorCode::unavailable && says_why ? 0 : 2;
      }
      session.reset();
      ::_exit(code);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_NO_THROW(session->reduce(0, values));
  });
}

}  // namespace
}  // namespace thinreduce
