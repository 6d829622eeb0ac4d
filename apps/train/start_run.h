// The start of a training on all ranks: they compare their options, agree on the run folder and
// prepare to record gradients.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "apps/gradients.h"
#include "apps/train/options.h"
#include "apps/train/replica.h"
#include "apps/train/run_folder.h"

namespace thinreduce::train {

// Throws Error{mismatch} if a rank was started with other options than rank 0.
void compare_settings(const TrainOptions& options, Transport& transport);

struct OpenedRun {
  std::filesystem::path path;        // the same on all ranks, which save their state there
  std::optional<RunFolder> folder;   // rank 0
  Checkpoint state;                  // the checkpoint that a resumed run starts from
  std::vector<double> step_seconds;  // seconds per step before the checkpoint, on rank 0
};

// Creates the run folder, or opens that of a run to resume. Rank 0 chooses its path for all ranks.
[[nodiscard]] OpenedRun open_run(const TrainOptions& options, Transport& transport);

// Returns the writer of this rank's gradients, if the options ask for it.
[[nodiscard]] std::optional<apps::GradientWriter> start_recording(const TrainOptions& options,
                                                                  const Replica& replica,
                                                                  Transport& transport);

}  // namespace thinreduce::train
