// What the second moments of the gradient add to the time of backward.
#pragma once

#include "apps/train/options.h"

namespace thinreduce::train {

// Prints both times and what is added; the exit code. Needs no images: noise takes as long.
int bench_second_moment(const TrainOptions& options);

}  // namespace thinreduce::train
