// The transport `mpi`: mpi.cc connects, tells and hears of ranks that leave or give up, and keeps
// abandoned messages; mpi_operation.cc sends and receives.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/mpi/mpi_message.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

// Waits a little between two polls of MPI.
class MpiPoller {
 public:
  void pause() {
    if (++polls_ <= kPollsBeforeSleep) {
      ::sched_yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, kLongestSleep);
  }

 private:
  // A message on a fast network arrives within microseconds; after that, waiting must not take the
  // core from a rank that computes.
  static constexpr int kPollsBeforeSleep = 200;
  static constexpr std::chrono::microseconds kFirstSleep{10};
  static constexpr std::chrono::microseconds kLongestSleep{100};

  int polls_ = 0;
  std::chrono::microseconds sleep_ = kFirstSleep;
};

// What a rank tells the others about itself.
enum class MpiNotice : char { goodbye = 'g', abandoned = 'a' };

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(bool finalises) : finalises_(finalises) {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
    check_mpi(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check_mpi(MPI_Comm_rank(world_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(world_, &size_), "MPI_Comm_size");
    left_.resize(static_cast<std::size_t>(size_));
  }
  ~MpiTransport() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void abandon(const std::string& reason) noexcept override;
  bool native_sum(std::span<float> values, const WaitLimits& limits) override;

 private:
  friend class MpiOperation;

  struct Failure {
    ErrorCode code;
    std::string message;  // from this rank's point of view
    std::string notice;   // the same for the others
  };

  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override;
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override;

  void leave();
  // Receives the notices that have arrived.
  void listen();
  // Tells all peers that this rank leaves or gives up. Only the first call has an effect.
  void notify_peers(MpiNotice kind, const std::string& text) noexcept;
  void throw_if_failed() const {
    if (failure_) throw Error(failure_->code, failure_->message);
  }
  // Keeps the memory of an abandoned message until MPI needs it no longer.
  void keep(std::unique_ptr<MpiMessage> message);
  void release_finished();

  const pid_t creator_ = ::getpid();
  const bool finalises_;
  // Held for every call of MPI, which one thread at a time may use, and for the members below.
  // Threads that wait release it between polls.
  std::mutex mutex_;
  MPI_Comm world_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::vector<std::optional<Clock::time_point>> left_;  // by rank: when it left
  std::optional<Failure> failure_;
  bool told_ = false;
  std::list<std::unique_ptr<MpiMessage>> kept_;
};

}  // namespace thinreduce
