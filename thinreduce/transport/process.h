// A forked child must not use the connections of its parent. A child has copies of the
// parent's memory and descriptors but none of its threads. Without care, a peer would not notice
// the death of a rank whose DataLoader workers live on, and a child that exits would wait for
// threads that it does not have.
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>

namespace thinreduce {

// Closes `fd` in every child that this process forks, until close_here(fd).
void close_in_children(int fd);
// Closes `fd` in this process. No fork comes between this and its being forgotten.
void close_here(int fd);

// An object that is destroyed only by the process that made it; a forked child leaks its copy.
template <typename T>
class OwnedHere {
 public:
  explicit OwnedHere(std::unique_ptr<T> object) : object_(std::move(object)) {}
  OwnedHere(const OwnedHere&) = delete;
  OwnedHere& operator=(const OwnedHere&) = delete;
  ~OwnedHere() {
    if (!here()) static_cast<void>(object_.release());
  }

  // Returns whether this is the process that made it.
  [[nodiscard]] bool here() const { return ::getpid() == creator_; }
  [[nodiscard]] T* get() const { return object_.get(); }
  T* operator->() const { return object_.get(); }
  T& operator*() const { return *object_; }

 private:
  pid_t creator_ = ::getpid();
  std::unique_ptr<T> object_;
};

}  // namespace thinreduce
