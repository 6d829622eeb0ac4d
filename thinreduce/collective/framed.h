// One frame from one rank to another: the header first, so that the receiver can check the length
// before it allocates memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/wire/frame.h"

namespace thinreduce {

// Throws Error{bad_frame} unless a header from `peer` belongs to this exchange and announces at
// most `limit` bytes.
void check_announced(const FrameHeader& header, const Exchange& exchange, int peer,
                     std::size_t limit);

class FramedSend {
 public:
  // Numbers the header, which is that of any message with this payload. `payload` must stay valid
  // until wait() returns or this object is destroyed.
  FramedSend(Exchange& exchange, int peer, const FrameHeaderBytes& header,
             std::span<const std::byte> payload);
  void wait(Exchange& exchange);

 private:
  std::unique_ptr<FrameHeaderBytes> numbered_;
  Pending header_;
  Pending payload_;
};

// The bytes that a payload may have: at most `limit`, or, if `exact`, exactly that many. The
// receive of a payload of known length starts with that of its header, because Gloo sends no byte
// of a message before its receiver has asked for it, and on a busy link the request waits behind
// other messages.
struct PayloadLength {
  PayloadLength(std::size_t bytes, bool is_exact = false) : limit(bytes), exact(is_exact) {}
  std::size_t limit;
  bool exact;
};

class FramedReceive {
 public:
  // Refuses a payload of another length. `memory` becomes the payload buffer, so that repeated
  // receives do not allocate.
  FramedReceive(Exchange& exchange, int peer, PayloadLength length,
                std::vector<std::byte> memory = {});
  FramedReceive(const FramedReceive&) = delete;
  FramedReceive& operator=(const FramedReceive&) = delete;
  // Waits for the header, checks it and starts to receive the payload unless that has started.
  void wait_header(Exchange& exchange);
  // Waits for the payload and checks it against its header.
  void wait_payload(Exchange& exchange);
  [[nodiscard]] std::span<const std::byte> payload() const { return payload_; }
  // Returns the memory; only after wait_payload().
  [[nodiscard]] std::vector<std::byte> release() { return std::move(payload_); }

 private:
  int peer_;
  PayloadLength length_;
  std::uint64_t number_;
  FrameHeaderBytes bytes_{};
  FrameHeader header_;
  std::vector<std::byte> payload_;
  Pending pending_header_;
  Pending pending_payload_;

  void start_payload(Exchange& exchange, std::size_t bytes);
};

}  // namespace thinreduce
