// Local ranks as processes that may die, leave and join while the others go on.
//
// The launcher is the meeting place. A rank that needs a new world, because it has lost a peer or
// because a new rank waits, asks for one; when all ranks that are alive have asked, the launcher
// tells each its place in it. It starts a new rank for one that was killed, and one more on
// SIGUSR1. A rank that gets SIGTERM leaves after its step.
#pragma once

#include <functional>
#include <memory>

#include "apps/launch.h"

namespace thinreduce::apps {

// A rank's side of the meeting place.
class ElasticRank {
 public:
  // `socket` leads to the launcher.
  ElasticRank(const LaunchOptions& options, int socket) : options_(options), socket_(socket) {}

  // Waits for all other ranks and connects to them. Throws Error{lost_peer} if the launcher is
  // gone.
  [[nodiscard]] std::shared_ptr<Transport> meet();
  // Returns whether the others of the last meeting were in a world before, and this rank was not.
  [[nodiscard]] bool joins() const { return joins_; }
  // Returns whether a new rank waits for a meeting. Does not wait.
  [[nodiscard]] bool is_called() const;

 private:
  const LaunchOptions& options_;
  int socket_;
  bool joins_ = false;
};

// Returns whether a launcher has started this process.
[[nodiscard]] bool is_elastic_rank();

// Runs on every rank; throws when the rank fails.
using ElasticMain = std::function<void(ElasticRank&)>;

// In the launcher: starts the ranks and serves them until all have ended. Returns 0 if the last one
// to end was successful. In a rank that the launcher has started: runs `rank_main`.
int launch_elastic(const LaunchOptions& options, const ElasticMain& rank_main);

}  // namespace thinreduce::apps
