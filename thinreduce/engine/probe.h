// The link between the ranks, measured when a session starts.
#pragma once

#include <optional>

#include "thinreduce/transport/throttle.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

// Returns the same link on all ranks: the largest latency and the smallest rate that any of them
// was given or measured. Every rank measures round trips to its right neighbour, of a few bytes and
// of 64 KiB, unless `given` is set on all ranks. A link that is faster than the processor counts as
// unlimited. All ranks must call it.
[[nodiscard]] Link agree_on_link(Transport& transport, const WaitLimits& limits,
                                 const std::optional<Link>& given);

}  // namespace thinreduce
