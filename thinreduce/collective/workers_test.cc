#include "thinreduce/collective/workers.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>

#include "thinreduce/ensure.h"
#include "thinreduce/transport/simulate.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::workers_test {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

// A pool and a rank that uses it.
class TestPool {
 public:
  explicit TestPool(int threads) : pool_(threads), ranks_(connect_threads(1)) {}
  [[nodiscard]] Workers workers() { return {pool_, *ranks_[0]}; }

 private:
  WorkerPool pool_;
  std::vector<std::unique_ptr<Transport>> ranks_;
};

TEST(Workers, DoEveryBlockOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    TestPool pool(threads);
    const Workers workers = pool.workers();
    EXPECT_EQ(workers.threads(), static_cast<std::size_t>(threads));
    for (const std::size_t blocks : {0U, 1U, 2U, 7U, 1000U}) {
      std::vector<int> done(blocks);
      std::vector<std::size_t> by_thread(workers.threads());  // nobody else has the same number
      workers.for_blocks(blocks, [&](std::size_t block, std::size_t thread) {
        ++done.at(block);
        ++by_thread.at(thread);
      });
      EXPECT_EQ(done, std::vector<int>(blocks, 1));
      EXPECT_EQ(std::accumulate(by_thread.begin(), by_thread.end(), std::size_t{0}), blocks);
    }
  }
}

TEST(Workers, CutRunsThatCoverEverything) {
  TestPool pool(3);
  for (const std::size_t count : {0U, 1U, 9U, 10U, 11U, 1009U}) {
    std::vector<int> seen(count);
    pool.workers().for_runs(count, 10, [&](std::size_t first, std::size_t run, std::size_t) {
      ASSERT_LE(run, 10U);
      for (std::size_t i = 0; i < run; ++i) ++seen.at(first + i);
    });
    EXPECT_EQ(seen, std::vector<int>(count, 1));
  }
}

TEST(Workers, OneBlockStaysWithItsCaller) {
  TestPool pool(4);
  const auto caller = std::this_thread::get_id();
  pool.workers().for_blocks(1, [&](std::size_t, std::size_t thread) {
    EXPECT_EQ(thread, 0U);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

// The caller gets the exception that one thread would throw, whichever block throws first, and the
// pool goes on.
TEST(Workers, RethrowWhatTheFirstBlockThrew) {
  for (const int threads : {1, 2, 5}) {
    TestPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      std::string thrown;
      try {
        pool.workers().for_blocks(50, [](std::size_t block, std::size_t) {
          if (block % 7 == 3) throw std::runtime_error(std::to_string(block));
        });
      } catch (const std::runtime_error& error) {
        thrown = error.what();
      }
      ASSERT_EQ(thrown, "3");
      std::atomic<int> done = 0;
      pool.workers().for_blocks(20, [&](std::size_t, std::size_t) { ++done; });
      ASSERT_EQ(done, 20);
    }
  }
}

// Of several buckets in flight one has the threads; the others do their work themselves.
TEST(Workers, ServeOneCallerAtATime) {
  TestPool pool(3);
  std::atomic<int> done = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        pool.workers().for_blocks(10, [&](std::size_t, std::size_t) { ++done; });
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(done, 4 * 100 * 10);
  // Work inside of work is that of another caller.
  pool.workers().for_blocks(3, [&](std::size_t, std::size_t) {
    pool.workers().for_blocks(3, [&](std::size_t, std::size_t thread) {
      EXPECT_EQ(thread, 0U);
      ++done;
    });
  });
  EXPECT_EQ(done, 4 * 100 * 10 + 9);
}

// CPU time as these tests spend it.
thread_local nanoseconds spent{0};

// Blocks of 5, 1, 1, 1, 1, 1 on two cores: one takes the long one, the other all short ones.
TEST(Workers, AVirtualClockCountsACorePerThread) {
  const std::array<nanoseconds, 6> lengths{5ms, 1ms, 1ms, 1ms, 1ms, 1ms};
  for (const auto& [threads, elapsed] : {std::pair{1, 10ms}, {2, 5ms}, {3, 5ms}}) {
    auto ranks = simulate(connect_threads(1), {.links = ClusterLinks::parse("unlimited"),
                                               .cores = 1,
                                               .threads = threads,
                                               .cpu_time = [] { return spent; }});
    WorkerPool pool(threads);
    const Workers workers(pool, *ranks[0]);
    spent = 0ms;
    const auto before = ranks[0]->now();
    for (int round = 0; round < 3; ++round) {
      workers.for_blocks(lengths.size(),
                         [&](std::size_t block, std::size_t) { spent += lengths[block]; });
      spent += 2ms;  // alone
    }
    EXPECT_EQ(ranks[0]->now() - before, 3 * (elapsed + 2ms)) << threads;
  }
}

}  // namespace
}  // namespace thinreduce::workers_test
