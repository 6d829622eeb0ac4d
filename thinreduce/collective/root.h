// Through the root: one rank collects every payload, computes an answer, and all ranks get it.
//
// Latencies: 1 to the root, then two broadcasts, each of up to N-1 hops (broadcast.h). Bytes sent:
// 64 + payload(r) by every rank but the root, and 64 + answer by every rank but the last of the
// chain.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"

namespace thinreduce {

// Computes the answer at the root from all payloads, which are in rank order.
using Answer =
    std::function<std::vector<std::byte>(const std::vector<std::span<const std::byte>>& payloads)>;

// Returns the answer. `limit` bounds each payload and the answer as in gather().
[[nodiscard]] std::vector<std::byte> through_root(Exchange& exchange, int root,
                                                  std::span<const std::byte> own, std::size_t limit,
                                                  const Answer& answer);

}  // namespace thinreduce
