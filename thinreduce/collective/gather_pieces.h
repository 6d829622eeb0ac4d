// Gather in pieces: like gather(), but the payload is made, sent and taken piece by piece, so that
// encoding and decoding go on while other pieces are on the wire.
//
// A piece is a frame of its own; all ranks have the same number of pieces and send them in order.
// While piece p is taken, the pieces up to p + 8 are on their way. Steps: 1. Bytes sent by rank r:
// (N-1) * (64 * pieces + payload(r)).
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"

namespace thinreduce {

// What one gather in pieces is about.
struct PieceWork {
  std::size_t pieces = 0;  // the same on all ranks
  // The longest payload of a piece that makes sense: a peer that announces more is refused before
  // anything is allocated.
  std::size_t limit = 0;
  // Replaces `payload` by this rank's piece; it may be empty. Called for each piece in order and
  // charged to encoding.
  std::function<void(std::size_t piece, std::vector<std::byte>& payload)> write;
  // All ranks' payloads of a piece, this one's own included, by rank; headers and checksums are
  // verified. Called for each piece in order and charged to decoding.
  std::function<void(std::size_t piece, std::span<const std::span<const std::byte>> payloads)> take;
};

// Memory that lasts from one gather to the next, so that it is allocated once.
struct PieceMemory {
  std::vector<std::vector<std::byte>> own;    // this rank's payload of each piece; stays readable
  std::vector<std::vector<std::byte>> spare;  // of receives
};

// When it throws, some pieces may have been taken and others not.
void gather_pieces(Exchange& exchange, const PieceWork& work, PieceMemory& memory);

}  // namespace thinreduce
