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

  explicit Turns(int cores) : free_(cores) {}

  // Waits for a core. Of all that wait, the one with the earliest clock gets the next.
  void take(Time clock) {
    std::unique_lock lock(mutex_);
    if (free_ > 0) {
      --free_;
      return;
    }
    Waiter self;
    waiting_.emplace(clock, &self);
    self.turn.wait(lock, [&] { return self.has_turn; });
  }

  void give() {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) {
      ++free_;
      return;
    }
    Waiter* next = waiting_.begin()->second;
    waiting_.erase(waiting_.begin());
    next->has_turn = true;
    next->turn.notify_one();  // under the lock: afterwards the waiter may be gone
  }

 private:
  struct Waiter {
    std::condition_variable turn;
    bool has_turn = false;
  };

  std::mutex mutex_;
  int free_;
  std::multimap<Time, Waiter*> waiting_;  // by clock
};

}  // namespace thinreduce
