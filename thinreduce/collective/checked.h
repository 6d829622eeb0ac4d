// A message with a checksum, for bytes that travel without a frame: a segment of a ring or of a
// broadcast, or floats that go directly to every rank. A receiver uses no byte before the checksum
// was right.
//
// The checksum covers a hash of the bytes, the exchange that they belong to, their sender and the
// number of the message. It follows the bytes in the same message if they are few, and otherwise
// travels as a message of its own on Channel::header, so that large messages are sent from and
// received into the memory of the payload. Many bytes are hashed while they travel. Bytes that go
// to several ranks, or are received and passed on, are hashed once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"

namespace thinreduce {

inline constexpr std::size_t kMessageChecksumBytes = sizeof(std::uint64_t);
// Up to here copying the bytes costs less than a second message.
inline constexpr std::size_t kMaxCopiedBytes = std::size_t{16} * 1024;

class CheckedSend {
 public:
  // `bytes` must stay valid until wait() returns or this object is destroyed.
  CheckedSend(Exchange& exchange, int peer, std::span<const std::byte> bytes);
  // The same with a hash that several sends share: the first one computes it if it is not known.
  CheckedSend(Exchange& exchange, int peer, std::span<const std::byte> bytes,
              std::optional<std::uint64_t>& hash);
  void wait(Exchange& exchange);

 private:
  void start(Exchange& exchange, int peer, std::span<const std::byte> bytes,
             std::optional<std::uint64_t>& hash);

  std::vector<std::byte> copy_;  // the checksum, after the bytes if they are few
  Pending bytes_;
  Pending checksum_;  // null if it is part of the other message
};

class CheckedReceive {
 public:
  CheckedReceive(Exchange& exchange, int peer, std::span<std::byte> bytes);
  // Throws Error{bad_frame} that names the peer if the message was altered.
  void wait(Exchange& exchange);
  // Returns the hash of the bytes, known after wait(), for those who pass them on.
  [[nodiscard]] std::optional<std::uint64_t>& hash() { return hash_; }

 private:
  int peer_;
  std::uint64_t number_;
  std::span<std::byte> bytes_;
  std::vector<std::byte> copy_;
  std::optional<std::uint64_t> hash_;
  Pending pending_bytes_;
  Pending pending_checksum_;
};

}  // namespace thinreduce
