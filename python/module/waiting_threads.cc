#include "python/module/waiting_threads.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace thinreduce::python {

void WaitingThreads::stop() {
  std::vector<std::thread> idle;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->ending = true;
    shared_->changed.notify_all();
    shared_->changed.wait_for(lock, std::chrono::milliseconds(500), [&] {
      return std::none_of(shared_->threads.begin(), shared_->threads.end(),
                          [](const auto& one) { return one->busy; });
    });
    for (const auto& one : shared_->threads) {
      if (!one->thread.joinable()) continue;
      if (one->busy) {
        one->thread.detach();
      } else {
        idle.push_back(std::move(one->thread));
      }
    }
  }
  for (std::thread& one : idle) one.join();
}

void WaitingThreads::run(std::function<void()> work) {
  auto added = std::make_unique<Thread>();
  const std::lock_guard lock(shared_->mutex);
  shared_->queue.push_back(std::move(work));
  if (shared_->queue.size() <= shared_->idle) {
    shared_->changed.notify_one();
    return;
  }
  Thread& own = *added;
  own.busy = true;
  try {
    shared_->threads.reserve(shared_->threads.size() + 1);
    own.thread = std::thread([shared = shared_, &own] { serve(shared, own); });
  } catch (...) {  // no memory or no thread: nobody would do the work
    shared_->queue.pop_back();
    throw;
  }
  shared_->threads.push_back(std::move(added));
}

void WaitingThreads::serve(const std::shared_ptr<Shared>& shared, Thread& own) {
  std::unique_lock lock(shared->mutex);
  while (true) {
    if (shared->queue.empty()) {
      own.busy = false;
      ++shared->idle;
      shared->changed.wait(lock, [&] { return shared->ending || !shared->queue.empty(); });
      --shared->idle;
      if (shared->ending) return;
      own.busy = true;
    }
    const auto work = std::exchange(shared->queue.front(), nullptr);
    shared->queue.pop_front();
    lock.unlock();
    work();
    lock.lock();
    if (shared->ending) {
      own.busy = false;
      shared->changed.notify_all();
      return;
    }
  }
}

}  // namespace thinreduce::python
