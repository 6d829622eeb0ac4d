// A transport in which one operation goes wrong, chosen by its number: the same in every run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

enum class FaultKind {
  none,
  flipped_bit,     // a message arrives with one bit changed
  lost_send,       // a send can't be started; its message never arrives
  failed_send,     // a message arrives, but its sender is told that it did not
  failed_receive,  // a message to this rank is lost
};

struct Fault {
  FaultKind kind = FaultKind::none;
  std::uint64_t number = 0;  // of the send or receive since arm(), on all channels
  std::uint64_t bit = 0;     // modulo the bits of the message
};

// Text of the errors of lost and failed operations.
inline constexpr const char* kInjected = "injected fault";

class FaultyTransport final : public Transport {
 public:
  explicit FaultyTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  // Counts from zero again; the rank must be idle.
  void arm(const Fault& fault) {
    const std::lock_guard lock(mutex_);
    fault_ = fault;
    sends_ = receives_ = 0;
    peer_ = -1;
  }
  [[nodiscard]] std::uint64_t sends() const {
    const std::lock_guard lock(mutex_);
    return sends_;
  }
  [[nodiscard]] std::uint64_t receives() const {
    const std::lock_guard lock(mutex_);
    return receives_;
  }
  // Returns the peer of the operation that went wrong, -1 if none did.
  [[nodiscard]] int peer() const {
    const std::lock_guard lock(mutex_);
    return peer_;
  }

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void abandon(const std::string& reason) noexcept override { inner_->abandon(reason); }

 private:
  static Error injected() { return {ErrorCode::lost_peer, kInjected}; }

  // Completes, and then reports that it has not.
  class FailingOperation final : public Operation {
   public:
    explicit FailingOperation(Pending inner) : inner_(std::move(inner)) {}
    void wait(const Deadline& deadline) override {
      inner_->wait(deadline);
      throw injected();
    }

   private:
    Pending inner_;
  };

  // Sends other bytes than those it was given.
  class AlteredSend final : public Operation {
   public:
    AlteredSend(Transport& transport, int peer, Channel channel, std::vector<std::byte> message)
        : message_(std::move(message)), inner_(transport.send(peer, channel, message_)) {}
    void wait(const Deadline& deadline) override { inner_->wait(deadline); }

   private:
    std::vector<std::byte> message_;
    Pending inner_;
  };

  // Counts an operation; returns whether it is the one that goes wrong.
  bool strikes(bool kind, std::uint64_t& count, int peer) {
    const std::lock_guard lock(mutex_);
    if (count++ != fault_.number || !kind) return false;
    peer_ = peer;
    return true;
  }

  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    const FaultKind kind = fault_.kind;
    const bool sending = kind != FaultKind::none && kind != FaultKind::failed_receive;
    if (!strikes(sending, sends_, peer)) return inner_->send(peer, channel, message);
    if (kind == FaultKind::lost_send) throw injected();
    if (kind == FaultKind::failed_send) {
      return std::make_unique<FailingOperation>(inner_->send(peer, channel, message));
    }
    std::vector<std::byte> altered(message.begin(), message.end());
    if (!altered.empty()) {
      const std::uint64_t bit = fault_.bit % (altered.size() * 8);
      altered[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    }
    return std::make_unique<AlteredSend>(*inner_, peer, channel, std::move(altered));
  }

  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    auto pending = inner_->receive(peer, channel, message);
    if (!strikes(fault_.kind == FaultKind::failed_receive, receives_, peer)) return pending;
    return std::make_unique<FailingOperation>(std::move(pending));
  }

  std::unique_ptr<Transport> inner_;
  mutable std::mutex mutex_;  // tracks count together
  Fault fault_;
  std::uint64_t sends_ = 0;
  std::uint64_t receives_ = 0;
  int peer_ = -1;
};

}  // namespace thinreduce
