// Ring all-reduce: every rank ends with the sum over all ranks, and each rank sends 2(N-1)/N of the
// payload, whatever N is.
//
// Nouns. The payload is cut into N *chunks* of whole units; a chunk travels as *segments*, one
// message each. In the first half, rank r sends chunk r and adds its own part to every chunk that
// passes; after N-1 hops chunk c is complete at rank c-1. In the second half the complete chunks go
// round once more. Each segment is forwarded as soon as it arrives, so encoding, adding and
// decoding one segment overlaps with the transfer of the others.
//
// Latencies: 2(N-1). Bytes sent by rank r: 2*payload - chunk(r+1) - chunk(r+2) (chunks modulo N),
// and 8 for the checksum of each segment (checked.h).
//
// The order of addition depends only on N and the number of units, and one rank completes each sum,
// so all ranks end with the same bits: chunk c is added in the order of ranks c, c+1, ..., c-1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/collective/sum_codec.h"

namespace thinreduce {

struct RingOptions {
  // Small enough that a chunk of a typical bucket has several segments in flight, large enough that
  // the fixed cost of a message is negligible. Tests shrink it to reach the many-segments path.
  std::size_t segment_bytes = std::size_t{512} * 1024;
  // Receives posted ahead of the segment that is being processed: one in flight, the next one, and
  // slack for a rank that the scheduler has suspended.
  std::size_t receives_ahead = 3;
};

// Sums the data of `codec` over all ranks.
void ring_all_reduce(Exchange& exchange, SumCodec& codec, const RingOptions& options = {});

// Returns the bytes that `rank` sends in a ring of `units` units of `unit_bytes` bytes.
[[nodiscard]] std::uint64_t ring_bytes_sent(int rank, int world, std::size_t units,
                                            std::size_t unit_bytes,
                                            const RingOptions& options = {});

}  // namespace thinreduce
