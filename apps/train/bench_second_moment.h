// Measures the time that second moments add to backward.
#pragma once

#include "apps/train/options.h"

namespace thinreduce::train {

// Prints the times with and without; returns the exit code. Uses noise, which takes as long as
// images.
int bench_second_moment(const TrainOptions& options);

}  // namespace thinreduce::train
