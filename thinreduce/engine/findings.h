// The verdict of all ranks after a sum that looked for NaN and Inf.
#pragma once

#include <optional>

#include "thinreduce/collective/float_ring.h"
#include "thinreduce/error.h"
#include "thinreduce/method/layout.h"

namespace thinreduce {

// Every rank tells all others where it found NaN or Inf in its own values and in those of the rank
// before it, so that all ranks come to the same verdict: returns the same Error on all of them, or
// none. A rank that found none sends an empty frame.
[[nodiscard]] std::optional<Error> compare_findings(Exchange& exchange, const BucketLayout& layout,
                                                    const Nonfinite& found);

}  // namespace thinreduce
