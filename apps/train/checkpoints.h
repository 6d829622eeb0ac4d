// Saves and loads a checkpoint of all ranks: each its session's state, and rank 0 the model, or
// with local steps each rank its own.
#pragma once

#include <filesystem>

#include "apps/train/options.h"
#include "apps/train/replica.h"
#include "apps/train/run_folder.h"

namespace thinreduce::train {

// Saves all ranks to the folder `run` and removes older checkpoints. The checkpoint counts once
// rank 0 has named it in checkpoint.json.
void save_run(const TrainOptions& options, const std::filesystem::path& run, Transport& transport,
              Replica& replica, Checkpoint& state);

// Loads what save_run() saved. Throws Error{bad_state} for files that are cut or altered.
void load_run(const TrainOptions& options, const std::filesystem::path& run, Transport& transport,
              Replica& replica, Checkpoint& state);

}  // namespace thinreduce::train
