// Brings ranks to life: threads of this process, local processes over Gloo, or processes that
// torchrun's variables or mpirun have started already.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "thinreduce/transport/throttle.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::apps {

struct LaunchOptions {
  std::string transport = "threads";
  int ranks = 0;  // 0: not given
  std::string interface;
  Link link;
  Seconds timeout{60};
  // This program's own arguments, to start further ranks with.
  std::vector<std::string> arguments;
};

// Runs on every rank. Throws what went wrong.
using RankMain = std::function<void(std::shared_ptr<Transport>)>;

// Returns the exit code: 0, or 1 when a rank failed (its error is on standard error).
int launch(const LaunchOptions& options, const RankMain& rank_main);

}  // namespace thinreduce::apps
