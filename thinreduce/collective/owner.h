// Owner reduction: every rank owns a range of the payload, adds up the parts that all ranks send
// for it, and sends the answer to all.
//
// Nouns. The payload is cut into N *ranges* of whole units; rank r owns range r. Each range is cut
// into the same number of *pieces*. Rank r sends its *part* of a piece to the piece's owner, the
// right neighbour first, so that no two ranks load the same link first. The owner begins with its
// own part and adds the others in the order in which they arrive on busy links: those of ranks r-1,
// r-2, ..., r+1. Then it sends the *answer* to every other rank. All ranks, the owner included,
// decode the same answer, so all end with the same bits. Parts and answers are frames of any
// length. Encoding, adding and decoding a message overlaps with the transfer of others.
//
// Latencies: 2. Bytes sent by rank r: 80 and its part for each piece of the other ranges, and (N-1)
// times 80 and its answer for each piece of its own range. Empty pieces are not sent.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/collective/exchange.h"
#include "thinreduce/collective/gather.h"

namespace thinreduce {

// How a method encodes, adds and decodes the data of one owner reduction. Every range that is
// passed is one piece. The functions that take bytes of another rank must throw Error{bad_frame},
// which names that rank, for everything that encode_part() or encode_answer() does not write.
class OwnerCodec {
 public:
  virtual ~OwnerCodec() = default;
  // Returns the number of indivisible units; it must be the same on all ranks.
  [[nodiscard]] virtual std::size_t units() const = 0;
  // Returns the floats that a unit stands for; it decides the units per piece.
  [[nodiscard]] virtual std::size_t unit_elements() const = 0;

  // Return the maximum number of bytes that the functions below append.
  [[nodiscard]] virtual std::size_t max_part_bytes(Range range) const = 0;
  [[nodiscard]] virtual std::size_t max_answer_bytes(Range range) const = 0;

  // Returns whether they always append exactly that many bytes; a message then needs no round trip
  // in which the receiver learns its length.
  [[nodiscard]] virtual bool fixed_lengths() const { return false; }

  // Returns whether the answers are the same however the ranges are cut into pieces. Slow links
  // then get smaller ones.
  [[nodiscard]] virtual bool any_pieces() const { return false; }

  // Appends this rank's part of another rank's piece to `out`.
  virtual void encode_part(Range range, std::vector<std::byte>& out) = 0;
  // Begins the sum of a piece that this rank owns, with its own part.
  virtual void begin_sum(Range range) = 0;
  // Adds the part of `rank` to that sum. Called for all other ranks, always in the same order.
  virtual void add_part(Range range, int rank, std::span<const std::byte> part) = 0;
  // Appends the answer, made from the complete sum, to `out`.
  virtual void encode_answer(Range range, std::vector<std::byte>& out) = 0;
  // Decodes an answer. At its owner this follows directly after encode_answer().
  virtual void decode_answer(Range range, int owner, std::span<const std::byte> answer) = 0;
};

struct OwnerOptions {
  // Max elements per piece. Half a megabyte of bfloat16: a rank that shares its core with others
  // is woken seldom, and the fixed cost of a message is negligible even if it is compressed. Tests
  // shrink it to reach the many-pieces path.
  std::size_t piece_elements = std::size_t{256} * 1024;
  // Pieces that are sent before the first is added, so that the wire is busy while a rank computes.
  std::size_t ahead = 4;
};

// Bytes in front of each part and answer that say what they are; see docs/wire-format.md.
inline constexpr std::size_t kOwnerPrefixBytes = 16;

// Returns how many elements a piece has on a link, where its size is free: in proportion to the
// bandwidth, because a piece that takes long leaves the link idle when parts and answers wait for
// one another, and enough for the pieces that are in flight to fill the link for a round trip.
[[nodiscard]] std::size_t elements_per_piece(const Link& link, const OwnerOptions& options);

// Returns the range of `units` units that `owner` owns in a world of `world` ranks.
[[nodiscard]] inline Range owned_range(std::size_t units, int world, int owner) {
  return cut({0, units}, static_cast<std::size_t>(world), static_cast<std::size_t>(owner));
}

// Reduces the data of `codec` over all ranks, with buffers from Exchange::spare.
void owner_reduce(Exchange& exchange, OwnerCodec& codec, const OwnerOptions& options = {});

}  // namespace thinreduce
