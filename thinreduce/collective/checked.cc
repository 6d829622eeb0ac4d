#include "thinreduce/collective/checked.h"

#include <fmt/format.h>

#include <algorithm>

#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"
#include "thinreduce/wire/frame.h"

namespace thinreduce {
namespace {

bool is_copied(std::span<const std::byte> bytes) {
  return bytes.size() <= kMaxCopiedBytes;
}

}  // namespace

CheckedSend::CheckedSend(Exchange& exchange, int peer, std::span<const std::byte> bytes) {
  std::optional<std::uint64_t> hash;
  start(exchange, peer, bytes, hash);
}

CheckedSend::CheckedSend(Exchange& exchange, int peer, std::span<const std::byte> bytes,
                         std::optional<std::uint64_t>& hash) {
  start(exchange, peer, bytes, hash);
}

void CheckedSend::start(Exchange& exchange, int peer, std::span<const std::byte> bytes,
                        std::optional<std::uint64_t>& hash) {
  const bool copied = is_copied(bytes);
  const std::size_t place = copied ? bytes.size() : 0;
  copy_.resize(place + kMessageChecksumBytes);
  if (copied) {
    std::copy(bytes.begin(), bytes.end(), copy_.begin());
  } else {
    bytes_ = exchange.transport().send(peer, Channel::data, bytes);
  }
  if (!hash) exchange.timed(Stage::encode, [&] { hash = checksum(bytes); });
  store_value(copy_, place,
              message_checksum(exchange.id(), exchange.rank(), exchange.number_sent(peer), *hash));
  if (copied) {
    bytes_ = exchange.transport().send(peer, Channel::data, copy_);
  } else {
    checksum_ = exchange.transport().send(peer, Channel::header, copy_);
  }
}

// The checksum follows the bytes, so the first of the two waits is the only one that waits long.
void CheckedSend::wait(Exchange& exchange) {
  if (checksum_) exchange.wait(*checksum_);
  exchange.wait(*bytes_);
}

CheckedReceive::CheckedReceive(Exchange& exchange, int peer, std::span<std::byte> bytes)
    : peer_(peer),
      number_(exchange.number_received(peer)),
      bytes_(bytes),
      copy_((is_copied(bytes) ? bytes.size() : 0) + kMessageChecksumBytes) {
  if (is_copied(bytes)) {
    pending_bytes_ = exchange.transport().receive(peer, Channel::data, copy_);
    return;
  }
  pending_bytes_ = exchange.transport().receive(peer, Channel::data, bytes);
  pending_checksum_ = exchange.transport().receive(peer, Channel::header, copy_);
}

void CheckedReceive::wait(Exchange& exchange) {
  if (pending_checksum_) exchange.wait(*pending_checksum_);
  exchange.wait(*pending_bytes_);
  const std::size_t copied = copy_.size() - kMessageChecksumBytes;
  exchange.timed(Stage::decode, [&] {
    std::copy_n(copy_.begin(), copied, bytes_.begin());
    hash_ = checksum(bytes_);
  });
  const auto stated = load_value<std::uint64_t>(copy_, copied);
  const std::uint64_t actual = message_checksum(exchange.id(), peer_, number_, *hash_);
  if (actual == stated) return;
  throw Error(ErrorCode::bad_frame,
              fmt::format("rank {}, bucket {}, step {}: message {} from rank {}, of {} bytes, has "
                          "checksum {:#018x}, computed {:#018x}; it was altered or reordered in "
                          "transit",
                          exchange.rank(), exchange.id().bucket, exchange.id().step, number_, peer_,
                          bytes_.size(), stated, actual));
}

}  // namespace thinreduce
