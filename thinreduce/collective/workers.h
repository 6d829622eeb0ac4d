// The threads of one rank that share the work on a large bucket.
//
// Work is cut into blocks. A block writes memory that no other block touches, and adds floats in
// the order in which one thread would add them, so the bits of a result are the same for any number
// of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "thinreduce/transport/transport.h"

namespace thinreduce {

// Owns the threads. They sleep while there is nothing to do; only for a moment after a job they
// look for the next one, because to wake a thread takes longer than many a job.
class WorkerPool {
 public:
  // Starts threads - 1 threads: the one that hands out work is the other. Throws
  // Error{unavailable} when the system has no more threads.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] std::size_t threads() const { return threads_.size() + 1; }

 private:
  friend class Workers;
  using Nanoseconds = std::chrono::nanoseconds;

  // Work on one block by one of the threads.
  struct Job {
    void (*work)(const void* context, std::size_t block, std::size_t thread) = nullptr;
    const void* context = nullptr;
    std::size_t blocks = 0;
    Transport* clock = nullptr;  // counts the work; null: a real clock
  };
  // Returns once all blocks are done, or rethrows the exception of the first block that threw.
  // Returns false, and does nothing, if the threads are at work for another thread, or if there is
  // no memory to count their time: a method shares work after its last message, too, where it must
  // not fail.
  [[nodiscard]] bool run(const Job& job);
  // Makes room for the time of each block, if it is counted.
  [[nodiscard]] bool has_room_for(const Job& job) noexcept;
  void serve(std::size_t thread);
  // Returns as soon as done() holds, or after a moment.
  template <typename Done>
  void linger(const Done& done) const;
  void take_blocks(std::size_t thread);
  void do_block(std::size_t block, std::size_t thread);
  void fail(std::size_t block);
  void stop();
  // Tells a virtual clock how long the job took.
  void count_time();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  // Those that are atomic change under the mutex, and are also read without it.
  std::atomic<std::size_t> jobs_{0};     // handed out so far
  bool in_use_ = false;                  // by the thread that handed out the current one
  bool open_ = false;                    // threads may begin with it
  std::atomic<std::size_t> working_{0};  // threads that have begun with it and not finished
  std::atomic<bool> stopping_{false};
  std::atomic<bool> lingers_{false};  // not where a virtual clock counts the time
  std::size_t failed_block_ = 0;
  std::exception_ptr failure_;

  Job job_;
  std::atomic<std::size_t> next_{0};  // block
  std::vector<Nanoseconds> took_;     // per block, of CPU time
  std::vector<Nanoseconds> busy_;     // per thread, the same
  std::vector<Nanoseconds> cores_;    // per thread: how long it would be busy on a core of its own
  std::vector<std::thread> threads_;
};

// A pool as methods use it. Copies refer to the same pool; without one, the calling thread does
// all the work.
class Workers {
 public:
  Workers() = default;
  // `track` is the caller's, whose clock counts the work if it is virtual.
  Workers(WorkerPool& pool, Transport& track)
      : pool_(pool.threads() > 1 ? &pool : nullptr),
        clock_(track.counted_time() ? &track : nullptr) {}

  [[nodiscard]] std::size_t threads() const { return pool_ == nullptr ? 1 : pool_->threads(); }

  // Calls work(block, thread) for all blocks, several at a time, in any order; `thread` is below
  // threads(), and no two calls at a time have the same. One block never leaves the calling thread,
  // nor do several while another thread has the pool. If blocks throw, rethrows the exception of
  // the first; blocks after it may be left out.
  template <typename Work>
  void for_blocks(std::size_t blocks, const Work& work) const {
    const auto run = [](const void* context, std::size_t block, std::size_t thread) {
      (*static_cast<const Work*>(context))(block, thread);
    };
    if (pool_ != nullptr && blocks > 1 && pool_->run({run, &work, blocks, clock_})) return;
    for (std::size_t block = 0; block < blocks; ++block) work(block, std::size_t{0});
  }

  // The same for runs of `length` items of `count`: calls work(first, count, thread).
  template <typename Work>
  void for_runs(std::size_t count, std::size_t length, const Work& work) const {
    for_blocks((count + length - 1) / length, [&](std::size_t block, std::size_t thread) {
      const std::size_t first = block * length;
      work(first, std::min(length, count - first), thread);
    });
  }

 private:
  WorkerPool* pool_ = nullptr;
  Transport* clock_ = nullptr;
};

// Floats per block of loops over memory: a few tens of microseconds, and so far more than it costs
// to hand a block out.
inline constexpr std::size_t kFloatsPerBlock = 65536;

}  // namespace thinreduce
