// Broadcast: the root's bytes at every rank, along a chain root, root+1, ... in segments.
//
// Steps: N-1 hops, pipelined. Bytes sent: the message by every rank but the chain's last.
#pragma once

#include <cstddef>
#include <span>

#include "thinreduce/collective/exchange.h"

namespace thinreduce {

struct BroadcastOptions {
  // As RingOptions::segment_bytes.
  std::size_t segment_bytes = std::size_t{512} * 1024;
  // False for an answer to payloads that are counted already.
  bool is_payload = true;
};

// `message` has the same length on all ranks.
void broadcast(Exchange& exchange, int root, std::span<std::byte> message,
               const BroadcastOptions& options = {});

}  // namespace thinreduce
