#include "thinreduce/wire/frame.h"

#include <fmt/format.h>

#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

// Offsets of the table in docs/wire-format.md.
constexpr std::size_t kMagic = 0;
constexpr std::size_t kVersion = 4;
constexpr std::size_t kMethod = 6;
constexpr std::size_t kBucket = 8;
constexpr std::size_t kRank = 12;
constexpr std::size_t kStep = 16;
constexpr std::size_t kElements = 24;
constexpr std::size_t kLayout = 32;
constexpr std::size_t kLength = 40;
constexpr std::size_t kPayloadChecksum = 48;
constexpr std::size_t kHeaderChecksum = 56;

template <typename T>
void check_field(const FrameHeader& header, const char* field, T theirs, T ours) {
  if (theirs != ours) {
    throw Error(ErrorCode::mismatch,
                fmt::format("rank {} sent a frame for bucket {}, step {} with {} {}, expected {}",
                            header.rank, header.id.bucket, header.id.step, field, theirs, ours));
  }
}

void store_identity(std::span<std::byte> header, const FrameId& id, int rank) {
  store_value(header, kMethod, id.method);
  store_value(header, kBucket, id.bucket);
  store_value(header, kRank, static_cast<std::uint32_t>(rank));
  store_value(header, kStep, id.step);
  store_value(header, kElements, id.elements);
  store_value(header, kLayout, id.layout_hash);
}

}  // namespace

FrameHeaderBytes encode_header(const FrameId& id, int rank, std::span<const std::byte> payload) {
  FrameHeaderBytes bytes{};
  const std::span<std::byte> out(bytes);
  store_value(out, kMagic, kFrameMagic);
  store_value(out, kVersion, kFrameVersion);
  store_identity(out, id, rank);
  store_value(out, kLength, static_cast<std::uint64_t>(payload.size()));
  store_value(out, kPayloadChecksum, checksum(payload));
  number_header(bytes, 0);
  return bytes;
}

void number_header(FrameHeaderBytes& header, std::uint64_t number) {
  const std::span<std::byte> bytes(header);
  store_value(bytes, kHeaderChecksum, checksum(bytes.first(kHeaderChecksum), number));
}

std::uint64_t message_checksum(const FrameId& id, int rank, std::uint64_t number,
                               std::uint64_t hash) {
  FrameHeaderBytes header{};
  store_identity(header, id, rank);
  store_value(std::span(header), kLength, hash);
  return checksum(std::span(header).subspan(kMethod, kLength - kMethod + sizeof(hash)), number);
}

FrameHeader decode_header(std::span<const std::byte> bytes, int rank, std::uint64_t number) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::bad_frame, fmt::format("frame from rank {}: {}", rank, why));
  };
  if (bytes.size() < kFrameHeaderBytes) {
    refuse(fmt::format("is cut after {} bytes; a header has {}", bytes.size(), kFrameHeaderBytes));
  }
  if (const auto magic = load_value<std::uint32_t>(bytes, kMagic); magic != kFrameMagic) {
    refuse(fmt::format("starts with {:#010x}, not {:#010x}; the peer does not run thinreduce",
                       magic, kFrameMagic));
  }
  if (const auto version = load_value<std::uint16_t>(bytes, kVersion); version != kFrameVersion) {
    refuse(fmt::format("has format version {}, this build has {}; run the same build on all ranks",
                       version, kFrameVersion));
  }
  const auto stated = load_value<std::uint64_t>(bytes, kHeaderChecksum);
  if (const auto actual = checksum(bytes.first(kHeaderChecksum), number); stated != actual) {
    refuse(
        fmt::format("header checksum is {:#018x}, computed {:#018x} for message {} of the "
                    "exchange; it was altered or reordered in transit",
                    stated, actual, number));
  }
  FrameHeader header;
  header.id.method = load_value<std::uint16_t>(bytes, kMethod);
  header.id.bucket = load_value<std::uint32_t>(bytes, kBucket);
  header.id.step = load_value<std::uint64_t>(bytes, kStep);
  header.id.elements = load_value<std::uint64_t>(bytes, kElements);
  header.id.layout_hash = load_value<std::uint64_t>(bytes, kLayout);
  header.rank = load_value<std::uint32_t>(bytes, kRank);
  header.payload_bytes = load_value<std::uint64_t>(bytes, kLength);
  header.payload_checksum = load_value<std::uint64_t>(bytes, kPayloadChecksum);
  if (header.rank != static_cast<std::uint32_t>(rank)) {
    refuse(fmt::format("names rank {} as its sender", header.rank));
  }
  return header;
}

void check_id(const FrameHeader& header, const FrameId& expected) {
  check_field(header, "method", header.id.method, expected.method);
  check_field(header, "bucket", header.id.bucket, expected.bucket);
  check_field(header, "step", header.id.step, expected.step);
  check_field(header, "element count", header.id.elements, expected.elements);
  check_field(header, "layout hash", header.id.layout_hash, expected.layout_hash);
}

void check_payload(const FrameHeader& header, std::span<const std::byte> payload) {
  if (payload.size() != header.payload_bytes) {
    throw Error(ErrorCode::bad_frame,
                fmt::format("payload of rank {} for bucket {}, step {} has {} bytes, its header "
                            "announces {}",
                            header.rank, header.id.bucket, header.id.step, payload.size(),
                            header.payload_bytes));
  }
  if (const auto actual = checksum(payload); actual != header.payload_checksum) {
    throw Error(ErrorCode::bad_frame,
                fmt::format("payload of rank {} for bucket {}, step {} has checksum {:#018x}, its "
                            "header announces {:#018x}; the payload was altered in transit",
                            header.rank, header.id.bucket, header.id.step, actual,
                            header.payload_checksum));
  }
}

}  // namespace thinreduce
