// Lets only as many ranks of a virtual cluster compute at once as there are cores.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

namespace thinreduce {

class Turns {
 public:
  using Time = std::chrono::nanoseconds;

  // One rank's place in the queue.
  struct Waiter {
    std::condition_variable turn;
    bool has_turn = false;
  };

  explicit Turns(int cores) : free_(cores) {}

  // Queues a waiter for a core. Of all that are queued, the one with the earliest clock gets the
  // next. Any thread may call it; the waiter's own thread sleeps in wait() until its turn.
  void queue(Time clock, Waiter& waiter) {
    const std::lock_guard lock(mutex_);
    if (free_ > 0) {
      --free_;
      start(waiter);
    } else {
      queue_.emplace(clock, &waiter);
    }
  }

  // Returns when the waiter, which is queued or will be, has a core.
  void wait(Waiter& waiter) {
    std::unique_lock lock(mutex_);
    waiter.turn.wait(lock, [&] { return waiter.has_turn; });
    waiter.has_turn = false;
  }

  // Gives a core back.
  void give() {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) {
      ++free_;
    } else {
      start(*queue_.begin()->second);
      queue_.erase(queue_.begin());
    }
  }

 private:
  static void start(Waiter& waiter) {
    waiter.has_turn = true;
    waiter.turn.notify_one();
  }

  std::mutex mutex_;
  int free_;
  std::multimap<Time, Waiter*> queue_;  // by clock
};

}  // namespace thinreduce
