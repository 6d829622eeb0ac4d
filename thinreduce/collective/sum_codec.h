// How a method encodes, adds and decodes the data of a sum over all ranks. A ring (ring.h) and a
// sum by owners (owner_sum.h) take the same codec and give the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "thinreduce/collective/chunks.h"

namespace thinreduce {

// No range that a collective passes to encode(), add(), add_part() or decode() crosses a message;
// encode() is the first call for each range and comes once. The functions that take bytes of
// another rank must throw Error{bad_frame}, which names that rank, for everything that no rank
// encodes.
class SumCodec {
 public:
  virtual ~SumCodec() = default;
  // Returns the number of indivisible units; it must be the same on all ranks.
  [[nodiscard]] virtual std::size_t units() const = 0;
  // Returns the approximate bytes of a unit on the wire; it decides the units per message.
  [[nodiscard]] virtual std::size_t unit_bytes() const = 0;
  // Returns where the partial sum of a range over `summed` ranks lives in its wire form.
  // Collectives also ask for the whole payload, to count its bytes.
  [[nodiscard]] virtual std::span<std::byte> wire(Range range, int summed) = 0;
  // Encodes this rank's own part of a range into wire(range, 1).
  virtual void encode(Range range) = 0;
  // Adds this rank's part to `incoming`, a partial sum over `summed` ranks that rank `peer` sent;
  // the result is wire(range, summed + 1).
  virtual void add(Range range, int summed, std::span<const std::byte> incoming, int peer) = 0;
  // Adds `part`, the part of rank `peer`, to a partial sum over `summed` ranks, which began with
  // wire(range, 1). Called N-1 times in a row for a range. The result, in wire(range, N), must have
  // the bits that add() gives at the ranks whose parts they are.
  virtual void add_part(Range range, int summed, std::span<const std::byte> part, int peer) = 0;
  // Decodes the complete sum in wire(range, N), which came from rank `peer`, or is this rank's own.
  // It must not change those bytes: their send may still be in flight.
  virtual void decode(Range range, int peer) = 0;
};

}  // namespace thinreduce
