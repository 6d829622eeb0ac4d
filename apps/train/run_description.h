// A run in words and in JSON: the files config.json and summary.json, and the first lines on the
// terminal.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "apps/train/options.h"
#include "apps/train/replica.h"
#include "apps/train/run_folder.h"

namespace thinreduce::train {

// A run as rank 0 sees it.
struct RunView {
  const TrainOptions& options;  // settled
  const Replica& replica;
  int ranks;
  const std::filesystem::path& folder;
};

[[nodiscard]] Json accuracy_to_json(double accuracy);

// Returns the contents of config.json.
[[nodiscard]] Json run_config(const RunView& run);

// Returns the contents of summary.json. `step_seconds` is that of a typical step, and `statistics`
// are the means of the method's.
[[nodiscard]] Json run_summary(const RunView& run, const Checkpoint& state, double step_seconds,
                               const std::map<std::string, double>& statistics);

// Prints what will be trained.
void announce_run(const RunView& run, const Checkpoint& state);

}  // namespace thinreduce::train
