// Gather: every rank gets every rank's payload, whatever its size; a payload may be empty.
//
// Each rank sends its frames directly to every other, its right neighbour first, so that no two
// ranks load the same link first. Latencies: 1 (a header, then the payload unless it is empty).
// Bytes sent by rank r: (N-1) * (64 + payload(r)), or (N-1) * (64 * pieces + payload(r)) in pieces.
//
// In pieces, the payload is made, sent and taken piece by piece, so that encoding and decoding
// overlap with the transfer of other pieces. A piece is a frame of its own; all ranks have the same
// number of pieces and send them in order. While piece p is taken, the pieces up to p + 8 are in
// flight.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/collective/exchange.h"

namespace thinreduce {

// Called for every rank, including this one, in rank order, once all payloads have arrived. All
// payloads stay valid until the last call returns.
using OnPayload = std::function<void(int rank, std::span<const std::byte> payload)>;

// Gathers one payload per rank. A peer that announces more than `limit` bytes is refused before
// memory is allocated; headers and checksums are verified before the first `on_payload`.
void gather(Exchange& exchange, std::span<const std::byte> own, std::size_t limit,
            const OnPayload& on_payload);

struct PieceWork {
  std::size_t pieces = 0;  // the same on all ranks
  std::size_t limit = 0;   // the maximum bytes of a piece, as in gather()
  std::size_t batch = 1;   // pieces that are written, and taken, at a time; ranks may differ
  // Writes this rank's next pieces. Called in order and charged to encoding.
  std::function<void(Range pieces)> write;
  // Returns one of them, possibly empty, which must stay valid until the gather ends.
  std::function<std::span<const std::byte>(std::size_t piece)> piece;
  // Takes the verified payloads of the next pieces, including this rank's own, one piece after
  // another, each in rank order. Called in order and charged to decoding.
  std::function<void(Range pieces, std::span<const std::span<const std::byte>> payloads)> take;
};

// Gathers in pieces, with buffers from Exchange::spare. If it throws, only some of the pieces may
// have been taken.
void gather_pieces(Exchange& exchange, const PieceWork& work);

}  // namespace thinreduce
