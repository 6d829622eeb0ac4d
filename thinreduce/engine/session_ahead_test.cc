// Several buckets in flight: they do not wait for one another, and deliver in order. And what a
// forked child may do with a session.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "tests/ranks.h"
#include "tests/session_world.h"
#include "tests/tracks.h"
#include "thinreduce/engine/flights.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"

namespace thinreduce::session_ahead_test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kBuckets = 2 * Flights::kTracks + 1;
constexpr auto kHang = 60s;

// Holds back the data of one track until it is told to go on.
class Gated final : public Transport {
 public:
  explicit Gated(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

  void hold(int track) {
    const std::lock_guard lock(mutex_);
    held_ = on_track(track, Channel::data);
  }
  void go_on() {
    hold(kMaxTracks);
    changed_.notify_all();
  }
  // Returns whether data was sent on this number of tracks before a generous deadline.
  bool await_tracks(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kHang, [&] { return sent_.size() >= count; });
  }

 private:
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kHang, [&] { return channel != held_; }));
    if (const int track = track_carrying_data(channel); track > 0) sent_.insert(track);
    changed_.notify_all();
    lock.unlock();
    return inner_->send(peer, channel, message);
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return inner_->receive(peer, channel, message);
  }

  std::unique_ptr<Transport> inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Channel held_ = on_track(kMaxTracks, Channel::data);  // a track that a session does not use
  std::set<int> sent_;                                  // tracks
};

bool is_ready(const std::future<Report>& future) {
  return future.wait_for(0s) == std::future_status::ready;
}

// Submits small buckets; returns their futures.
std::vector<std::future<Report>> submit_all(Session& session,
                                            std::vector<std::vector<float>>& values) {
  std::vector<std::future<Report>> done;
  values.clear();
  for (std::uint32_t id = 0; id < kBuckets; ++id) {
    values.push_back(gradient(1000 + id, session.rank(), id));
    const BucketLayout layout{.id = id, .elements = values[id].size(), .tensors = {}};
    done.push_back(session.submit(session.add_bucket(layout), values[id]));
  }
  return done;
}

// Rank 1 holds back the data of the first bucket until all others that have a track sent theirs.
// Their futures are not ready before that of the first.
TEST(SessionAhead, BucketsDoNotWaitForOneAnotherAndDeliverInOrder) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    const auto gated = std::make_shared<Gated>(std::move(transport));
    Session session(gated, {.spec = "topk", .link = Link{}});
    if (session.rank() == 1) gated->hold(1);
    std::vector<std::vector<float>> values;
    const auto done = submit_all(session, values);
    if (session.rank() == 1) {
      EXPECT_TRUE(gated->await_tracks(Flights::kTracks - 1));
      EXPECT_TRUE(std::ranges::none_of(done, is_ready));
      gated->go_on();
    }
    for (std::size_t id = kBuckets; id-- > 0;) {
      done[id].wait();
      EXPECT_EQ(std::ranges::count_if(done, is_ready), kBuckets);
    }
  });
}

// Several buckets in flight have the same results as one at a time, and so has the saved state.
TEST(SessionAhead, BucketsInFlightHaveTheBitsOfBucketsOneByOne) {
  for (const std::string& spec : default_specs()) {
    run_ranks(3, [&](std::unique_ptr<Transport> transport) {
      const std::shared_ptr<Transport> shared = std::move(transport);
      const auto run = [&](bool together, std::vector<std::vector<float>>& values) {
        Session session(shared, {.spec = spec, .momentum_inside_ok = true});
        for (std::uint64_t step = 0; step <= steps_of(spec, 1); ++step) {
          std::vector<std::future<Report>> done;
          values.clear();
          for (std::uint32_t id = 0; id < 5; ++id) {
            values.push_back(gradient(5223, session.rank(), 10 * step + id));
          }
          for (std::uint32_t id = 0; id < 5; ++id) {
            done.push_back(session.submit(session.add_bucket(mixed_layout(id)), values[id]));
            if (!together) done.back().wait();
          }
          for (auto& one : done) one.get();
        }
        return session.save_bytes();
      };
      std::vector<std::vector<float>> means;
      std::vector<std::vector<float>> means_together;
      const auto state = run(false, means);
      EXPECT_EQ(run(true, means_together), state) << spec;
      EXPECT_EQ(means_together, means) << spec;
    });
  }
}

// A bucket that is refused fails alone; those before and after it are reduced.
TEST(SessionAhead, ARefusedBucketLeavesTheOthersInFlightAlone) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    Session session(std::move(transport), {.spec = "topk"});
    std::vector<std::vector<float>> values;
    for (std::uint32_t id = 0; id < 6; ++id) values.push_back(gradient(5223, session.rank(), id));
    if (session.rank() == 1) values[2][7] = std::numeric_limits<float>::quiet_NaN();
    std::vector<std::future<Report>> done;
    for (std::uint32_t id = 0; id < 6; ++id) {
      done.push_back(session.submit(session.add_bucket(mixed_layout(id)), values[id]));
    }
    for (std::uint32_t id = 0; id < 6; ++id) {
      if (id == 2) {
        thrown_text(ErrorCode::bad_input, [&] { done[id].get(); });
      } else {
        EXPECT_EQ(done[id].get().step, 1U);
      }
    }
  });
}

TEST(SessionAhead, AClosingSessionFinishesTheBucketsInFlight) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) {
    std::vector<std::vector<float>> values;
    std::vector<std::future<Report>> done;
    {
      Session session(std::move(transport), {.spec = "dqsg"});
      done = submit_all(session, values);
    }
    for (auto& one : done) EXPECT_NO_THROW(one.get());
  });
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
}  // namespace thinreduce::session_ahead_test
