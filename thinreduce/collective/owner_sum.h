// Sum by owners: the sum of ring.h, bit for bit, in two latencies.
//
// Nouns are those of owner.h. Rank r owns chunk r of the ring as its range. It begins with its own
// part and adds those of ranks r+1, r+2, ..., r-1, which is the ring's order of addition, then
// sends the complete sum to every other rank. Lengths are known to all ranks, so parts and answers
// are checked messages without frames, sent from and received into the memory of the payload. Every
// rank sends to its left neighbour first: parts then arrive in the order in which they are added.
//
// Latencies: 2. Bytes sent by rank r: the parts of all other ranges, and N-1 times the complete sum
// of its own range, and 8 for the checksum of each message (checked.h). For units that do not grow
// with the number of ranks in a sum these are the ring's bytes, if N divides the units.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/collective/sum_codec.h"

namespace thinreduce {

struct OwnerSumOptions {
  // Half a segment of a ring: a rank has N-1 of them in flight at once. Tests shrink it to reach
  // the many-pieces path.
  std::size_t piece_bytes = std::size_t{256} * 1024;
  // Pieces that are sent before the first is added, so that the wire is busy while a rank computes.
  std::size_t ahead = 4;
};

// Sums the data of `codec` over all ranks in three parts, between which the caller may work or
// exchange other messages while those of the sum travel. All of them are in flight at once. All
// ranks must call the parts in the same order relative to their other messages.
class OwnerSumInParts {
 public:
  // `codec` must outlive this object.
  OwnerSumInParts(Exchange& exchange, SumCodec& codec);
  ~OwnerSumInParts();
  OwnerSumInParts(const OwnerSumInParts&) = delete;
  OwnerSumInParts& operator=(const OwnerSumInParts&) = delete;

  void send_parts();    // to their owners
  void send_answers();  // of the range that this rank owns
  void take_answers();

 private:
  class Sum;
  std::unique_ptr<Sum> sum_;
};

// Sums the data of `codec` over all ranks.
void owner_all_reduce(Exchange& exchange, SumCodec& codec, const OwnerSumOptions& options = {});

// Returns the bytes that `rank` sends for `units` units of `unit_bytes` bytes.
[[nodiscard]] std::uint64_t owner_bytes_sent(int rank, int world, std::size_t units,
                                             std::size_t unit_bytes,
                                             const OwnerSumOptions& options = {});

}  // namespace thinreduce
