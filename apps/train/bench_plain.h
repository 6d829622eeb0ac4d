// Measures the overhead of thinreduce on a single rank, against the same loop in plain libtorch.
#pragma once

#include "apps/train/dataset.h"
#include "apps/train/options.h"

namespace thinreduce::train {

// Prints both speeds and their ratio; returns the exit code.
int bench_plain(const TrainOptions& options, const Dataset& data);

}  // namespace thinreduce::train
