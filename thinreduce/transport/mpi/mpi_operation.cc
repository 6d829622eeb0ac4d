#include <fmt/format.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "thinreduce/transport/mpi/mpi_transport.h"

namespace thinreduce {
namespace {

// The longest time that a message matched before a goodbye takes to complete, also on a machine
// with far more work than cores.
constexpr std::chrono::milliseconds kGoodbyeGrace{1000};

}  // namespace

class MpiOperation : public Operation {
 public:
  // Sends a copy of `message`.
  MpiOperation(MpiTransport& transport, int peer, Channel channel,
               std::span<const std::byte> message)
      : MpiOperation(transport, peer, message.size()) {
    const std::lock_guard lock(transport_.mutex_);
    transport_.throw_if_failed();
    if (bytes_ > 0) std::memcpy(message_->memory.get(), message.data(), bytes_);
    start([&](const MpiMessageType& type) {
      return MPI_Isend(message_->memory.get(), type.count(), type.get(), peer_,
                       static_cast<int>(channel), transport_.world_, &message_->request);
    });
  }
  // Receives into `message`, which is written by wait() alone.
  MpiOperation(MpiTransport& transport, int peer, Channel channel, std::span<std::byte> message)
      : MpiOperation(transport, peer, message.size()) {
    const std::lock_guard lock(transport_.mutex_);
    transport_.throw_if_failed();
    received_ = message;
    receives_ = true;
    start([&](const MpiMessageType& type) {
      return MPI_Irecv(message_->memory.get(), type.count(), type.get(), peer_,
                       static_cast<int>(channel), transport_.world_, &message_->request);
    });
  }

  ~MpiOperation() override {
    const std::lock_guard lock(transport_.mutex_);
    if (message_->request == MPI_REQUEST_NULL) return;
    if (receives_) MPI_Cancel(&message_->request);
    if (!message_->finished()) transport_.keep(std::move(message_));
  }

  void wait(const Deadline& deadline) override {
    MpiPoller poller;
    std::unique_lock lock(transport_.mutex_);
    while (!test()) {
      transport_.listen();
      if (transport_.failure_) {
        if (test()) return;
        transport_.throw_if_failed();
      }
      const auto now = Clock::now();
      const auto& left = transport_.left_[static_cast<std::size_t>(peer_)];
      if (left && now - *left > kGoodbyeGrace) {
        throw Error(ErrorCode::lost_peer, fmt::format("rank {}: rank {} has left ({})",
                                                      transport_.rank_, peer_, describe_me()));
      }
      if (now >= deadline.at) give_up(deadline);
      lock.unlock();
      poller.pause();
      lock.lock();
    }
  }

 private:
  MpiOperation(MpiTransport& transport, int peer, std::size_t bytes)
      : transport_(transport),
        peer_(peer),
        bytes_(bytes),
        message_(std::make_unique<MpiMessage>(bytes)) {}

  template <typename Start>
  void start(Start&& start) {
    const int code = start(MpiMessageType(bytes_));
    if (code != MPI_SUCCESS) fail(code);
  }

  // Returns whether the operation has completed.
  bool test() {
    if (message_->request == MPI_REQUEST_NULL) return true;
    int done = 0;
    MPI_Status status;
    const int code = MPI_Test(&message_->request, &done, &status);
    if (code != MPI_SUCCESS) {
      int error_class = code;
      MPI_Error_class(code, &error_class);
      if (error_class == MPI_ERR_TRUNCATE) throw_mismatch(status);
      fail(code);
    }
    if (done == 0) return false;
    if (!receives_) return true;
    if (length_of(status) != bytes_) throw_mismatch(status);
    if (bytes_ > 0) std::memcpy(received_.data(), message_->memory.get(), bytes_);
    return true;
  }

  static std::size_t length_of(const MPI_Status& status) {
    MPI_Count count = 0;
    MPI_Get_elements_x(&status, MPI_BYTE, &count);
    return count < 0 ? 0 : static_cast<std::size_t>(count);
  }

  [[noreturn]] void throw_mismatch(const MPI_Status& status) {
    const std::size_t length = length_of(status);
    // MPI may report a message that was too long with the truncated length.
    const std::string sent =
        length == bytes_ ? fmt::format("more than {}", bytes_) : std::to_string(length);
    throw Error(ErrorCode::mismatch,
                fmt::format("rank {}: rank {} sent {} bytes where {} were expected",
                            transport_.rank_, peer_, sent, bytes_));
  }

  [[noreturn]] void fail(int code) {
    throw Error(ErrorCode::lost_peer,
                fmt::format("rank {}: lost rank {}: {} ({})", transport_.rank_, peer_,
                            describe_mpi_error(code), describe_me()));
  }

  [[noreturn]] void give_up(const Deadline& deadline) {
    const auto reason = fmt::format(
        "no answer from rank {} within {:g} s ({}); rank {} is computing, stopped, unreachable, "
        "or itself waiting for such a rank; check it, or raise patience",
        peer_, deadline.allowed.count(), describe_me(), peer_);
    transport_.failure_ = {ErrorCode::timeout, fmt::format("rank {}: {}", transport_.rank_, reason),
                           fmt::format("rank {} gave up: {}", transport_.rank_, reason)};
    transport_.notify_peers(MpiNotice::abandoned, transport_.failure_->notice);
    throw Error(ErrorCode::timeout, transport_.failure_->message);
  }

  [[nodiscard]] std::string describe_me() const {
    return fmt::format("{} of {} bytes", receives_ ? "receive" : "send", bytes_);
  }

  MpiTransport& transport_;
  const int peer_;
  const std::size_t bytes_;
  std::unique_ptr<MpiMessage> message_;
  std::span<std::byte> received_;
  bool receives_ = false;
};

Pending MpiTransport::start_send(int peer, Channel channel, std::span<const std::byte> message) {
  return std::make_unique<MpiOperation>(*this, peer, channel, message);
}

Pending MpiTransport::start_receive(int peer, Channel channel, std::span<std::byte> message) {
  return std::make_unique<MpiOperation>(*this, peer, channel, message);
}

}  // namespace thinreduce
