// Ring sum: every rank ends with the sum over all ranks, and each rank sends 2(N-1)/N of the
// payload, however many ranks there are.
//
// Nouns. The payload is cut into N *chunks* of whole units; a chunk travels as *segments*, the
// messages. In the first half, rank r starts chunk r on its way and adds its own part to every
// chunk that passes; after N-1 hops chunk c is complete at rank c-1. In the second half the
// complete chunks go round once more. Segments are forwarded as they come, so encoding, adding and
// decoding one segment overlaps with the wire of the others.
//
// Steps: 2(N-1). Bytes sent by rank r: 2*payload - chunk(r+1) - chunk(r+2) (chunks modulo N).
// Floats of at most RingOptions::direct_bytes go straight to every other rank instead and are added
// in rank order: 1 step, (N-1)*payload bytes sent, because then latency is what counts.
//
// The order of addition depends on N and the number of units only, and each sum is either completed
// by one rank or added in the same order by all, so all ranks end with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/collective/exchange.h"

namespace thinreduce {

// What travels round the ring, as the method keeps it. The ring calls with ranges that never cross
// a segment; each range is encoded once, before anything else happens to it.
class RingPayload {
 public:
  virtual ~RingPayload() = default;
  // How many indivisible units; must be the same on all ranks.
  [[nodiscard]] virtual std::size_t units() const = 0;
  // A unit's bytes on the wire, about; decides how many make a segment.
  [[nodiscard]] virtual std::size_t unit_bytes() const = 0;
  // Where the partial sum of a range over `summed` ranks lives in its wire form. The ring also asks
  // for the whole payload, to count its bytes.
  [[nodiscard]] virtual std::span<std::byte> wire(UnitRange range, int summed) = 0;
  // Prepares this rank's own part of a range: wire(range, 1) is ready to leave afterwards.
  virtual void encode(UnitRange range) = 0;
  // Adds a partial sum over `summed` ranks that came in, so that wire(range, summed + 1) is ready.
  virtual void add(UnitRange range, int summed, std::span<const std::byte> incoming) = 0;
  // wire(range, N) holds the complete sum: turn it into the result. It may still be on its way out,
  // so it must not be changed.
  virtual void decode(UnitRange range) = 0;
};

struct RingOptions {
  // Small enough that a chunk of a typical bucket has several segments in flight, large enough that
  // a message's fixed cost does not show. Tests shrink it to reach the many-segments path.
  std::size_t segment_bytes = std::size_t{512} * 1024;
  // How many receives are posted ahead of the segment that is being worked on: one on the wire, one
  // behind it, and slack for a rank that was scheduled away.
  std::size_t receives_ahead = 3;
  // Floats of at most this many bytes go straight to every rank: there, a hop costs more than
  // bytes.
  std::size_t direct_bytes = std::size_t{16} * 1024;
};

void ring_all_reduce(Exchange& exchange, RingPayload& payload, const RingOptions& options = {});

// Sums float32 in place; on return every rank holds sum * scale.
void ring_sum(Exchange& exchange, std::span<float> values, float scale,
              const RingOptions& options = {});

// Where a rank saw the first NaN or Inf while a sum was made: an index, or the number of values.
struct Nonfinite {
  std::size_t own = 0;   // in its own values, but for the chunk that it started
  std::size_t left = 0;  // in the chunk that the rank before it started
};

// The same, and looks for NaN and Inf on the way, while the values are in the cache anyway. What
// all ranks saw covers all values of all ranks; the sum is void everywhere when any of them saw
// one.
[[nodiscard]] Nonfinite ring_sum_checked(Exchange& exchange, std::span<float> values, float scale,
                                         const RingOptions& options = {});

// The elementwise maximum in place, by the same ring.
void ring_max(Exchange& exchange, std::span<float> values, const RingOptions& options = {});

// Throws Error{bad_frame} that names bucket, step and `what` when a sum over the ranks has a NaN or
// Inf: a method that goes on with it would make nonsense of the gradient.
void require_finite_sum(const Exchange& exchange, std::span<const float> sums,
                        std::string_view what);

// What a ring of `units` units of `unit_bytes` makes `rank` send.
[[nodiscard]] std::uint64_t ring_bytes_sent(int rank, int world, std::size_t units,
                                            std::size_t unit_bytes);

}  // namespace thinreduce
