// Changes of the world of an elastic run: ranks die, leave and join while the others go on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "apps/elastic.h"
#include "apps/train/replica.h"
#include "apps/train/run_folder.h"
#include "thinreduce/error.h"

namespace thinreduce::train {

// The peers of a rank in an elastic run; empty in other runs.
struct ElasticPeers {
  apps::ElasticRank* rank = nullptr;
  std::function<bool()> leaves{};  // whether this rank should leave
};

// Facts about a run that ranks which join do not have yet.
struct RunFacts {
  Checkpoint& state;
  std::uint64_t& first_step;      // number of steps before those of the session
  std::filesystem::path& folder;  // the run folder
};

// Returns whether the ranks can go on without a peer that was lost.
[[nodiscard]] bool is_loss(const Error& error);

// Goes on with all ranks that are alive, over `transport` if they have met already, and gives ranks
// that join the facts. Sets `transport`, and the step that comes next. Throws Error if that fails
// for another reason than the loss of a rank.
Reconfiguration change_world(apps::ElasticRank& rank, Replica& replica,
                             std::shared_ptr<Transport>& transport, const RunFacts& facts);

}  // namespace thinreduce::train
