// Threads that wait where nothing can wake them.
//
// Gloo forgets to end the wait for a message when the connection breaks in the middle of it. So a
// thread of the engine lets one of these wait in its place, and leaves it behind when the peer is
// lost. It ends with Gloo's own time limit, or with the process.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace thinreduce::python {

// A wait that one thread makes for another.
class DelegatedWait {
 public:
  // Ends the wait, unless it has ended; `what` is empty if the message has arrived.
  void end(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
    what_ = what;
    changed_.notify_all();
  }
  // Returns what end() was called with.
  std::string result() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_; });
    return what_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::string what_;
};

class WaitingThreads {
 public:
  WaitingThreads() = default;
  ~WaitingThreads() { stop(); }
  WaitingThreads(const WaitingThreads&) = delete;
  WaitingThreads& operator=(const WaitingThreads&) = delete;

  // Runs `work`, which must hold all that it uses, on a thread that is idle or new. Throws, and
  // forgets `work`, if there is no memory or no thread for it.
  void run(std::function<void()> work);
  // Ends the threads, and leaves those behind that are still busy half a second later. Nothing may
  // run after it.
  void stop();

 private:
  struct Thread {
    std::thread thread;
    bool busy = false;
  };
  // Shared with the threads that are left behind.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> queue;
    std::size_t idle = 0;
    bool ending = false;
    std::vector<std::unique_ptr<Thread>> threads;
  };
  static void serve(const std::shared_ptr<Shared>& shared, Thread& own);

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace thinreduce::python
