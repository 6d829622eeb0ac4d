// Gather: every rank gets every rank's payload, whatever its size; a rank may send nothing.
//
// Each rank sends its frame straight to every other, starting with its right neighbour so that no
// two ranks load the same link first. Steps: 1 (a header, then the payload if there is one).
// Bytes sent by rank r: (N-1) * (64 + payload(r)).
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "thinreduce/collective/exchange.h"

namespace thinreduce {

// Called once for every rank, this one's own included, in rank order, when all are there; payloads
// stay until the last call returns.
using OnPayload = std::function<void(int rank, std::span<const std::byte> payload)>;

// `limit` is the longest payload that makes sense for this bucket: a peer that announces more is
// refused before anything is allocated. Headers and checksums are verified before `on_payload`.
void gather(Exchange& exchange, std::span<const std::byte> own, std::size_t limit,
            const OnPayload& on_payload);

}  // namespace thinreduce
