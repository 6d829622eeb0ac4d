// Runs a training from the run folder to the summary, on one rank.
#pragma once

#include <functional>
#include <memory>

#include "apps/elastic.h"
#include "apps/train/dataset.h"
#include "apps/train/options.h"

namespace thinreduce::train {

struct Outcome {
  bool interrupted = false;
  Json summary;  // on rank 0
};

// Trains to the end or until interrupted. `options` are those of the user or of read_config().
// Throws Error.
Outcome train(const TrainOptions& options, const Dataset& data,
              const std::shared_ptr<Transport>& transport);

// The same for a rank whose peers may die, leave and join. `leaves` says whether it should leave.
Outcome train_elastic(const TrainOptions& options, const Dataset& data, apps::ElasticRank& rank,
                      const std::function<bool()>& leaves);

}  // namespace thinreduce::train
