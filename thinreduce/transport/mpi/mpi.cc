#include "thinreduce/transport/mpi/mpi.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "thinreduce/error.h"
#include "thinreduce/transport/mpi/mpi_transport.h"

namespace thinreduce {
namespace {

// Channels, and the stamps of a throttled link, are tags below 256.
constexpr int kNoticeTag = 256;
// A notice: its kind, a text truncated to fit, then zero bytes.
constexpr std::size_t kNoticeBytes = 512;
using NoticeBytes = std::array<char, kNoticeBytes>;

// The longest time that a rank that leaves or gives up waits for its last messages to be sent, and
// for abandoned messages.
constexpr std::chrono::milliseconds kLastWords{1000};

}  // namespace

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
  if (::getpid() == creator_) MPI_Finalized(&finalised);
  if (::getpid() == creator_ && finalised == 0) leave();
  // Messages that MPI may still read or write keep their memory for good.
  for (auto& message : kept_) static_cast<void>(message.release());
}

void MpiTransport::leave() {
  if (failure_) {
    notify_peers(MpiNotice::abandoned, failure_->notice);
  } else {
    notify_peers(MpiNotice::goodbye, "");
  }
  const auto until = Clock::now() + kLastWords;
  MpiPoller poller;
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
    if (bytes[0] == static_cast<char>(MpiNotice::abandoned) && !failure_) {
      const std::string text(bytes.data() + 1);
      failure_ = {ErrorCode::lost_peer, text, text};
    }
  }
}

void MpiTransport::notify_peers(MpiNotice kind, const std::string& text) noexcept {
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
    notify_peers(MpiNotice::abandoned, failure_->notice);
  } catch (const std::exception&) {
    // Out of memory; the deadlines of the other ranks end their waits.
  }
}

bool MpiTransport::native_sum(std::span<float> values, const WaitLimits& /*limits*/) {
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  constexpr std::size_t kMax = std::size_t{1} << 30;
  while (!values.empty()) {
    const auto part = values.first(std::min(values.size(), kMax));
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
