#include "thinreduce/transport/process.h"

#include <pthread.h>

#include <mutex>
#include <set>

namespace thinreduce {
namespace {

struct Descriptors {
  std::mutex mutex;
  std::set<int> open;
};

// A global, because a fork concerns the whole process. Never destroyed: a fork may come late.
Descriptors& descriptors() {
  static Descriptors& all = *new Descriptors;
  return all;
}

void register_handlers() {
  ::pthread_atfork([] { descriptors().mutex.lock(); }, [] { descriptors().mutex.unlock(); },
                   [] {
                     for (const int fd : descriptors().open) ::close(fd);
                     descriptors().open.clear();
                     descriptors().mutex.unlock();
                   });
}

}  // namespace

void close_in_children(int fd) {
  static std::once_flag once;
  std::call_once(once, register_handlers);
  const std::lock_guard lock(descriptors().mutex);
  descriptors().open.insert(fd);
}

void close_here(int fd) {
  const std::lock_guard lock(descriptors().mutex);
  descriptors().open.erase(fd);
  ::close(fd);
}

}  // namespace thinreduce
