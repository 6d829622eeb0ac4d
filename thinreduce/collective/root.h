// To root and back: one rank collects every payload, answers, and all ranks get the answer.
//
// Steps: 1 to the root, then two broadcasts. Bytes sent: 64 + payload(r) by every rank but the
// root, and 64 + answer by every rank but the last of the chain.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"

namespace thinreduce {

// Runs at the root once all payloads, in rank order, are there.
using Answer =
    std::function<std::vector<std::byte>(const std::vector<std::span<const std::byte>>& payloads)>;

// `limit` bounds a payload and the answer as in gather().
[[nodiscard]] std::vector<std::byte> through_root(Exchange& exchange, int root,
                                                  std::span<const std::byte> own, std::size_t limit,
                                                  const Answer& answer);

}  // namespace thinreduce
