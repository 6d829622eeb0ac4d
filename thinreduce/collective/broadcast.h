// Broadcast: every rank gets the root's bytes, along a chain root, root+1, ... in segments.
//
// Latencies: N-1, pipelined. Bytes sent by every rank but the last of the chain: the message, and
// 8 for the checksum of each segment (checked.h).
#pragma once

#include <cstddef>
#include <span>

#include "thinreduce/collective/exchange.h"

namespace thinreduce {

struct BroadcastOptions {
  // See RingOptions::segment_bytes.
  std::size_t segment_bytes = std::size_t{512} * 1024;
  // Whether the message counts as payload; false for an answer to payloads already counted.
  bool is_payload = true;
};

// Overwrites `message` with the root's; its length must be the same on all ranks.
void broadcast(Exchange& exchange, int root, std::span<std::byte> message,
               const BroadcastOptions& options = {});

}  // namespace thinreduce
