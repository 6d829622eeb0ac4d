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
// so all ranks end with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/collective/exchange.h"

namespace thinreduce {

// The data of one ring, in the form in which the method keeps it. No range that the ring passes to
// encode(), add() or decode() crosses a segment; encode() is the first call for each range and
// comes once.
class RingPayload {
 public:
  virtual ~RingPayload() = default;
  // Returns the number of indivisible units; it must be the same on all ranks.
  [[nodiscard]] virtual std::size_t units() const = 0;
  // Returns the approximate bytes of a unit on the wire; it decides the units per segment.
  [[nodiscard]] virtual std::size_t unit_bytes() const = 0;
  // Returns where the partial sum of a range over `summed` ranks lives in its wire form. The ring
  // also asks for the whole payload, to count its bytes.
  [[nodiscard]] virtual std::span<std::byte> wire(UnitRange range, int summed) = 0;
  // Encodes this rank's own part of a range into wire(range, 1).
  virtual void encode(UnitRange range) = 0;
  // Adds this rank's part to `incoming`, a partial sum over `summed` ranks; the result is
  // wire(range, summed + 1).
  virtual void add(UnitRange range, int summed, std::span<const std::byte> incoming) = 0;
  // Decodes the complete sum in wire(range, N). It must not change those bytes: their send may
  // still be in flight.
  virtual void decode(UnitRange range) = 0;
};

struct RingOptions {
  // Small enough that a chunk of a typical bucket has several segments in flight, large enough that
  // the fixed cost of a message is negligible. Tests shrink it to reach the many-segments path.
  std::size_t segment_bytes = std::size_t{512} * 1024;
  // Receives posted ahead of the segment that is being processed: one in flight, the next one, and
  // slack for a rank that the scheduler has suspended.
  std::size_t receives_ahead = 3;
  // Floats of at most this many bytes go directly to every rank, because a hop costs more than the
  // bytes then; see float_ring.h.
  std::size_t direct_bytes = std::size_t{16} * 1024;
};

// Sums `payload` over all ranks.
void ring_all_reduce(Exchange& exchange, RingPayload& payload, const RingOptions& options = {});

// Returns the bytes that `rank` sends in a ring of `units` units of `unit_bytes` bytes.
[[nodiscard]] std::uint64_t ring_bytes_sent(int rank, int world, std::size_t units,
                                            std::size_t unit_bytes,
                                            const RingOptions& options = {});

}  // namespace thinreduce
