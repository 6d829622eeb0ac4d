#include "thinreduce/collective/workers.h"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <utility>

#include "thinreduce/ensure.h"

namespace thinreduce {

WorkerPool::WorkerPool(int threads) {
  ensure(threads >= 1, "a rank must have at least one thread", threads);
  const auto wanted = static_cast<std::size_t>(threads);
  busy_.resize(wanted);
  cores_.resize(wanted);
  threads_.reserve(wanted - 1);
  try {
    while (threads_.size() + 1 < wanted) {
      threads_.emplace_back([this, thread = threads_.size() + 1] { serve(thread); });
    }
  } catch (const std::exception& error) {
    stop();
    throw Error(ErrorCode::unavailable,
                fmt::format("thread {} of {} can't be started: {}; set fewer threads",
                            threads_.size() + 2, wanted, error.what()));
  }
}

WorkerPool::~WorkerPool() {
  stop();
}

void WorkerPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

bool WorkerPool::run(const Job& job) {
  {
    const std::lock_guard lock(mutex_);
    if (in_use_ || !has_room_for(job)) return false;
    in_use_ = open_ = true;
    job_ = job;
    next_ = 0;
    failure_ = nullptr;
    if (job.clock != nullptr) std::ranges::fill(took_, Nanoseconds{0});
    std::ranges::fill(busy_, Nanoseconds{0});
    lingers_ = job.clock == nullptr;
    ++jobs_;
  }
  wake_.notify_all();
  take_blocks(0);
  std::unique_lock lock(mutex_);
  open_ = false;  // a thread that has not woken up yet is not waited for
  if (working_ > 0) {
    lock.unlock();
    linger([&] { return working_ == 0; });
    lock.lock();
  }
  done_.wait(lock, [&] { return working_ == 0; });
  if (job.clock != nullptr) count_time();
  in_use_ = false;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  return true;
}

bool WorkerPool::has_room_for(const Job& job) noexcept {
  if (job.clock == nullptr) return true;
  try {
    took_.resize(job.blocks);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

template <typename Done>
void WorkerPool::linger(const Done& done) const {
  constexpr std::chrono::microseconds kMoment{50};
  if (!lingers_) return;
  const auto end = Clock::now() + kMoment;
  // Threads of the training that have no core get this one.
  while (!done() && Clock::now() < end) std::this_thread::yield();
}

void WorkerPool::serve(std::size_t thread) {
  std::size_t served = 0;  // jobs
  for (;;) {
    if (served > 0) linger([&] { return stopping_ || jobs_ > served; });
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || (open_ && jobs_ > served); });
      if (stopping_) return;
      served = jobs_;
      ++working_;
    }
    take_blocks(thread);
    const std::lock_guard lock(mutex_);
    if (--working_ == 0) done_.notify_one();
  }
}

// Blocks are handed out in order: when one fails, all before it have been handed out.
void WorkerPool::take_blocks(std::size_t thread) {
  for (;;) {
    const std::size_t block = next_.fetch_add(1, std::memory_order_relaxed);
    if (block >= job_.blocks) return;
    try {
      do_block(block, thread);
    } catch (...) {
      fail(block);
    }
  }
}

void WorkerPool::do_block(std::size_t block, std::size_t thread) {
  if (job_.clock == nullptr) return job_.work(job_.context, block, thread);
  const Nanoseconds start = *job_.clock->counted_time();
  job_.work(job_.context, block, thread);
  took_[block] = *job_.clock->counted_time() - start;
  busy_[thread] += took_[block];
}

void WorkerPool::fail(std::size_t block) {
  next_ = job_.blocks;
  const std::lock_guard lock(mutex_);
  if (failure_ && failed_block_ < block) return;
  failed_block_ = block;
  failure_ = std::current_exception();
}

// A virtual rank has a core per thread, and each takes the next block as soon as it is free. On
// this machine, others may have had its cores meanwhile.
void WorkerPool::count_time() {
  std::ranges::fill(cores_, Nanoseconds{0});
  for (const Nanoseconds took : took_) *std::ranges::min_element(cores_) += took;
  job_.clock->count_work(busy_[0], std::ranges::max(cores_));
}

}  // namespace thinreduce
