#include "thinreduce/transport/mpi/mpi.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/mpi/mpi_message.h"

namespace thinreduce {
namespace {

// Channels, and the stamps of a throttled link, are tags below 256.
constexpr int kNoticeTag = 256;
// A notice: its kind, a text truncated to fit, then zero bytes.
constexpr std::size_t kNoticeBytes = 512;
using NoticeBytes = std::array<char, kNoticeBytes>;
constexpr char kGoodbye = 'g';
constexpr char kAbandoned = 'a';

// A message on a fast network arrives within microseconds; after that, waiting must not take the
// core from a rank that computes.
constexpr int kPollsBeforeSleep = 200;
constexpr std::chrono::microseconds kFirstSleep{10};
constexpr std::chrono::microseconds kLongestSleep{100};
// The longest time that a rank that leaves or gives up waits for its last messages to be sent, and
// for abandoned messages.
constexpr std::chrono::milliseconds kLastWords{1000};
// The longest time that a message matched before a goodbye takes to complete.
constexpr std::chrono::milliseconds kGoodbyeGrace{250};

class Poller {
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
  int polls_ = 0;
  std::chrono::microseconds sleep_ = kFirstSleep;
};

class MpiOperation;

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
  void notify_peers(char kind, const std::string& text) noexcept;
  void throw_if_failed() const {
    if (failure_) throw Error(failure_->code, failure_->message);
  }
  // Keeps the memory of an abandoned message until MPI needs it no longer.
  void keep(std::unique_ptr<MpiMessage> message);
  void release_finished();

  const pid_t owner_ = ::getpid();
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
    Poller poller;
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
    transport_.notify_peers(kAbandoned, transport_.failure_->notice);
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

void MpiTransport::keep(std::unique_ptr<MpiMessage> message) {
  release_finished();
  kept_.push_back(std::move(message));
}

void MpiTransport::release_finished() {
  kept_.remove_if([](const auto& message) { return message->finished(); });
}

MpiTransport::~MpiTransport() {
  int finalised = 0;
  // In a forked child MPI belongs to the parent.
  if (::getpid() == owner_) MPI_Finalized(&finalised);
  if (::getpid() == owner_ && finalised == 0) leave();
  // Messages that MPI may still read or write keep their memory for good.
  for (auto& message : kept_) static_cast<void>(message.release());
}

void MpiTransport::leave() {
  if (failure_) {
    notify_peers(kAbandoned, failure_->notice);
  } else {
    notify_peers(kGoodbye, "");
  }
  const auto until = Clock::now() + kLastWords;
  Poller poller;
  for (release_finished(); !kept_.empty() && Clock::now() < until; release_finished()) {
    poller.pause();
  }
  MPI_Comm_free(&world_);
  if (finalises_) MPI_Finalize();
}

void MpiTransport::listen() {
  for (;;) {
    int there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, kNoticeTag, world_, &there, &status) != MPI_SUCCESS) return;
    if (there == 0) return;
    NoticeBytes bytes{};
    if (MPI_Recv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, status.MPI_SOURCE,
                 kNoticeTag, world_, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
      return;
    }
    bytes.back() = 0;
    left_[static_cast<std::size_t>(status.MPI_SOURCE)] = Clock::now();
    if (bytes[0] == kAbandoned && !failure_) {
      const std::string text(bytes.data() + 1);
      failure_ = {ErrorCode::lost_peer, text, text};
    }
  }
}

void MpiTransport::notify_peers(char kind, const std::string& text) noexcept {
  if (std::exchange(told_, true)) return;
  const auto until = Clock::now() + kLastWords;
  try {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      auto notice = std::make_unique<MpiMessage>(kNoticeBytes);
      std::memset(notice->memory.get(), 0, kNoticeBytes);
      notice->memory[0] = static_cast<std::byte>(kind);
      std::memcpy(notice->memory.get() + 1, text.data(), std::min(text.size(), kNoticeBytes - 2));
      if (MPI_Isend(notice->memory.get(), static_cast<int>(kNoticeBytes), MPI_BYTE, peer,
                    kNoticeTag, world_, &notice->request) != MPI_SUCCESS) {
        continue;
      }
      // MPI copies such a short message at once, whatever the peer does; this waits on a full
      // queue.
      while (!notice->finished() && Clock::now() < until) ::sched_yield();
      if (notice->request != MPI_REQUEST_NULL) keep(std::move(notice));
    }
  } catch (const std::exception&) {
    // Out of memory; the deadlines of the other ranks end their waits.
  }
}

void MpiTransport::abandon(const std::string& reason) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      const auto notice = fmt::format("rank {} gave up: {}", rank_, reason);
      failure_ = {ErrorCode::lost_peer, notice, notice};
    }
    notify_peers(kAbandoned, failure_->notice);
  } catch (const std::exception&) {
    // Out of memory; the deadlines of the other ranks end their waits.
  }
}

Pending MpiTransport::start_send(int peer, Channel channel, std::span<const std::byte> message) {
  return std::make_unique<MpiOperation>(*this, peer, channel, message);
}

Pending MpiTransport::start_receive(int peer, Channel channel, std::span<std::byte> message) {
  return std::make_unique<MpiOperation>(*this, peer, channel, message);
}

bool MpiTransport::native_sum(std::span<float> values, const WaitLimits& /*limits*/) {
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  constexpr std::size_t kMost = std::size_t{1} << 30;
  while (!values.empty()) {
    const auto part = values.first(std::min(values.size(), kMost));
    const int code = MPI_Allreduce(MPI_IN_PLACE, part.data(), static_cast<int>(part.size()),
                                   MPI_FLOAT, MPI_SUM, world_);
    if (code != MPI_SUCCESS) {
      throw Error(ErrorCode::lost_peer, fmt::format("rank {}: MPI_Allreduce of {} floats: {}",
                                                    rank_, part.size(), describe_mpi_error(code)));
    }
    values = values.subspan(part.size());
  }
  return true;
}

}  // namespace

std::unique_ptr<Transport> connect_mpi() {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0) {
    throw Error(
        ErrorCode::unavailable,
        "MPI is already finalised and cannot be started again; connect before MPI_Finalize");
  }
  int provided = MPI_THREAD_SINGLE;
  if (initialised != 0) {
    MPI_Query_thread(&provided);
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided),
              "MPI_Init_thread");
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    if (initialised == 0) MPI_Finalize();
    throw Error(ErrorCode::unavailable,
                fmt::format("MPI was initialised with thread level {}, thinreduce needs "
                            "MPI_THREAD_SERIALIZED ({}) or more; request it in MPI_Init_thread",
                            provided, MPI_THREAD_SERIALIZED));
  }
  return std::make_unique<MpiTransport>(initialised == 0);
}

bool under_mpi() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMIX_RANK") != nullptr;
}

bool have_mpi() {
  return true;
}

}  // namespace thinreduce
