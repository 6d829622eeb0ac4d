// Starts ranks as threads of this process or as local processes, or joins the world that torchrun
// or mpirun started.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "thinreduce/transport/authenticate.h"
#include "thinreduce/transport/simulate.h"
#include "thinreduce/transport/throttle.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::apps {

// World size when neither --ranks nor a launcher gives one.
inline constexpr int kDefaultRanks = 4;

struct LaunchOptions {
  std::string transport = "threads";
  int ranks = 0;            // 0: the default, or the size of the world that was started
  std::string interface;    // network interface for gloo; "": the one that reaches rank 0
  std::string secret_file;  // "": the secret of the environment
  Link link;                // emulated in real time
  std::optional<ClusterLinks> simulate;  // of a virtual cluster; only with threads
  int threads = 1;                       // that each rank of a virtual cluster has
  Seconds timeout{60};
  Seconds patience = WaitLimits::kDefaultPatience;
  // This program's own arguments, with which further ranks are started.
  std::vector<std::string> arguments;
};

// Returns the number of ranks that this program starts.
[[nodiscard]] inline int ranks_of(const LaunchOptions& options) {
  return options.ranks > 0 ? options.ranks : kDefaultRanks;
}

// Returns whether this process starts the ranks. Otherwise it is one of them, started by torchrun
// or mpirun or by such a process.
[[nodiscard]] bool starts_ranks(const LaunchOptions& options);

// Returns the secret of the file or of the environment; none if there is neither.
[[nodiscard]] Secret secret_of(const LaunchOptions& options);

// Returns the links as text, emulated or simulated.
[[nodiscard]] std::string link_text(const LaunchOptions& options);

// Runs on every rank; throws when the rank fails.
using RankMain = std::function<void(std::shared_ptr<Transport>)>;

// Runs all ranks. Returns the exit code: 0, or kFailed or kUsage after a rank failed and printed
// its error.
int launch(const LaunchOptions& options, const RankMain& rank_main);

}  // namespace thinreduce::apps
