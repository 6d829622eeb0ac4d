// What thinreduce costs a single rank: training steps through it, and the same in plain torch.
#pragma once

#include "apps/train/dataset.h"
#include "apps/train/options.h"

namespace thinreduce::train {

// Prints both speeds and their ratio; the exit code.
int bench_plain(const TrainOptions& options, const Dataset& data);

}  // namespace thinreduce::train
