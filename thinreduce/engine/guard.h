// The guard against a rank that is wrong: it compares the norms of all ranks' gradients of a bucket
// in one step, which travel in the agreement.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/wire/frame.h"

namespace thinreduce {

// Returns the ranks whose norm is more than `factor` times the median, each with that multiple. Of
// an even number of ranks the lower one of the two medians counts, so that one rank of two can be
// found. A median of 0 says nothing: there is no outlier then.
[[nodiscard]] std::map<int, double> find_outliers(std::span<const float> norms, double factor);

// Returns the error that refuses a bucket because of outliers.
[[nodiscard]] Error refused_outliers(const FrameId& id, const std::map<int, double>& outliers,
                                     double factor);

}  // namespace thinreduce
