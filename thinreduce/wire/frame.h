// The frame: a 64-byte header in front of a payload. docs/wire-format.md is the specification.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace thinreduce {

inline constexpr std::uint32_t kFrameMagic = 0x31524854;  // "THR1"
inline constexpr std::uint16_t kFrameVersion = 2;
inline constexpr std::size_t kFrameHeaderBytes = 64;

// The exchange that a frame belongs to; all ranks of the exchange must have the same.
struct FrameId {
  std::uint16_t method = 0;       // MethodInfo::wire_id; 0 for an agreement and for the settings
  std::uint32_t bucket = 0;       // the caller's number of the bucket
  std::uint64_t step = 0;         // number of times that this bucket was reduced before
  std::uint64_t elements = 0;     // float32 elements of the bucket
  std::uint64_t layout_hash = 0;  // of the bucket's size, tensors and own spec

  bool operator==(const FrameId&) const = default;
};

struct FrameHeader {
  FrameId id;
  std::uint32_t rank = 0;  // the sender
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_checksum = 0;
};

using FrameHeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

// Returns a header for `payload`, including the checksums.
[[nodiscard]] FrameHeaderBytes encode_header(const FrameId& id, int rank,
                                             std::span<const std::byte> payload);

// Makes `header` the header of message `number` of its sender to one peer in an exchange;
// encode_header() returns that of message 0.
void number_header(FrameHeaderBytes& header, std::uint64_t number);

// Returns the checksum of message `number` from `rank` to one peer in an exchange, for a message
// without a frame; `hash` is the checksum() of its bytes.
[[nodiscard]] std::uint64_t message_checksum(const FrameId& id, int rank, std::uint64_t number,
                                             std::uint64_t hash);

// Reads a header from `rank`. Throws Error{bad_frame} if it is truncated, altered, of another
// version, not that of message `number`, or names another sender.
[[nodiscard]] FrameHeader decode_header(std::span<const std::byte> bytes, int rank,
                                        std::uint64_t number = 0);

// Throws Error{mismatch}, naming the first field that differs, the rank and both values.
void check_id(const FrameHeader& header, const FrameId& expected);

// Throws Error{bad_frame} unless `payload` has the length and checksum of the header.
void check_payload(const FrameHeader& header, std::span<const std::byte> payload);

}  // namespace thinreduce
