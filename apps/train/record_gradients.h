// Records gradients of the first steps of a training, without a run folder and evaluations.
#pragma once

#include <memory>

#include "apps/train/options.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::train {

// Trains until `stop_after`, or to the end, and records every save_every-th step in the folder
// `save_gradients`. All ranks must call it.
void record_gradients(const TrainOptions& options, const Dataset& data,
                      const std::shared_ptr<Transport>& transport);

}  // namespace thinreduce::train
