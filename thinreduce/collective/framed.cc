#include "thinreduce/collective/framed.h"

#include <fmt/format.h>

#include "thinreduce/error.h"

namespace thinreduce {

void check_announced(const FrameHeader& header, const Exchange& exchange, int peer,
                     std::size_t limit) {
  check_id(header, exchange.id());
  if (header.payload_bytes <= limit) return;
  throw Error(ErrorCode::bad_frame,
              fmt::format("rank {} announces a payload of {} bytes for bucket {}, step {}; the "
                          "limit is {}",
                          peer, header.payload_bytes, header.id.bucket, header.id.step, limit));
}

FramedSend::FramedSend(Exchange& exchange, int peer, const FrameHeaderBytes& header,
                       std::span<const std::byte> payload)
    : numbered_(std::make_unique<FrameHeaderBytes>(header)) {
  number_header(*numbered_, exchange.number_sent(peer));
  header_ = exchange.transport().send(peer, Channel::header, *numbered_);
  if (!payload.empty()) payload_ = exchange.transport().send(peer, Channel::data, payload);
}

void FramedSend::wait(Exchange& exchange) {
  exchange.wait(*header_);
  if (payload_) exchange.wait(*payload_);
}

FramedReceive::FramedReceive(Exchange& exchange, int peer, std::size_t limit,
                             std::vector<std::byte> memory)
    : peer_(peer),
      limit_(limit),
      number_(exchange.number_received(peer)),
      payload_(std::move(memory)),
      pending_header_(exchange.transport().receive(peer, Channel::header, bytes_)) {}

void FramedReceive::wait_header(Exchange& exchange) {
  exchange.wait(*pending_header_);
  header_ = decode_header(bytes_, peer_, number_);
  check_announced(header_, exchange, peer_, limit_);
  payload_.resize(header_.payload_bytes);
  if (!payload_.empty()) {
    pending_payload_ = exchange.transport().receive(peer_, Channel::data, payload_);
  }
}

void FramedReceive::wait_payload(Exchange& exchange) {
  if (pending_payload_) exchange.wait(*pending_payload_);
  exchange.timed(Stage::decode, [&] { check_payload(header_, payload_); });
}

}  // namespace thinreduce
