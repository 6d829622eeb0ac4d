// Broadcast: every rank gets the root's bytes. The bytes and the link (Exchange::link) decide how:
//
// - along a chain root, root+1, ... in segments. Latencies: N-1, pipelined. Bytes sent by every
// rank
//   but the last of the chain: the message, and 8 for the checksum of each segment (checked.h).
// - directly. Latencies: 1. Bytes sent by the root: (N-1) * (message + 8).
// - by relays: the root sends a part to each rank, which sends it to all others. Latencies: 2.
// Bytes
//   sent by every rank but the root: (N-2) * (part + 8), by the root the sum of all parts and 8
//   each.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "thinreduce/collective/exchange.h"

namespace thinreduce {

enum class BroadcastBy { chain, direct, relays };

struct BroadcastOptions {
  // See RingOptions::segment_bytes.
  std::size_t segment_bytes = std::size_t{512} * 1024;
  // Whether the message counts as payload; false for an answer to payloads already counted.
  bool is_payload = true;
  // For tests; none: the fastest on the link.
  std::optional<BroadcastBy> by{};
};

// Overwrites `message` with the root's; its length must be the same on all ranks.
void broadcast(Exchange& exchange, int root, std::span<std::byte> message,
               const BroadcastOptions& options = {});

// Every rank broadcasts at the same time: overwrites messages[r] with rank r's, for all other ranks
// r. The lengths must be the same on all ranks; empty messages are not sent. Latencies: 1. Bytes
// sent by rank r: (N-1) * (its message + 8). All messages count as payload.
void broadcast_all(Exchange& exchange, std::span<const std::span<std::byte>> messages);

}  // namespace thinreduce
