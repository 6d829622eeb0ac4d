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

FramedReceive::FramedReceive(Exchange& exchange, int peer, PayloadLength length,
                             std::vector<std::byte> memory)
    : peer_(peer),
      length_(length),
      number_(exchange.number_received(peer)),
      payload_(std::move(memory)),
      pending_header_(exchange.transport().receive(peer, Channel::header, bytes_)) {
  if (length_.exact) start_payload(exchange, length_.limit);
}

void FramedReceive::start_payload(Exchange& exchange, std::size_t bytes) {
  payload_.resize(bytes);
  if (bytes > 0) pending_payload_ = exchange.transport().receive(peer_, Channel::data, payload_);
}

void FramedReceive::wait_header(Exchange& exchange) {
  exchange.wait(*pending_header_);
  header_ = decode_header(bytes_, peer_, number_);
  check_announced(header_, exchange, peer_, length_.limit);
  if (!length_.exact) return start_payload(exchange, header_.payload_bytes);
  if (header_.payload_bytes == length_.limit) return;
  throw Error(
      ErrorCode::bad_frame,
      fmt::format("rank {} announces a payload of {} bytes for bucket {}, step {}; it must "
                  "have {}",
                  peer_, header_.payload_bytes, header_.id.bucket, header_.id.step, length_.limit));
}

void FramedReceive::wait_payload(Exchange& exchange) {
  if (pending_payload_) exchange.wait(*pending_payload_);
  exchange.timed(Stage::decode, [&] { check_payload(header_, payload_); });
}

}  // namespace thinreduce
