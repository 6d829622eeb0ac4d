// A whole run, from the folder to the summary: one rank's side of it.
#pragma once

#include <memory>

#include "apps/train/dataset.h"
#include "apps/train/options.h"

namespace thinreduce::train {

struct Outcome {
  bool interrupted = false;
  Json summary;  // on rank 0
};

// Throws Error. `options` as the user gave them, or as read_config() left them.
Outcome train(const TrainOptions& options, const Dataset& data,
              const std::shared_ptr<Transport>& transport);

}  // namespace thinreduce::train
