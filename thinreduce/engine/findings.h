// The verdict of all ranks after a sum that looked for NaN and Inf.
#pragma once

#include <cstdint>
#include <optional>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/error.h"
#include "thinreduce/method/layout.h"

namespace thinreduce {

// Every rank tells all others where it found the first NaN or Inf in its own values; `first` is the
// number of values if it found none. So all ranks come to the same verdict: returns the same Error
// on all of them, or none.
[[nodiscard]] std::optional<Error> compare_findings(Exchange& exchange, const BucketLayout& layout,
                                                    std::uint64_t first);

}  // namespace thinreduce
