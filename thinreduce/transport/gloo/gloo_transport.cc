#include "thinreduce/transport/gloo/gloo_transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>

#include <algorithm>
#include <utility>

namespace thinreduce {
namespace {

using std::chrono::milliseconds;

// Channels, and the stamps of a throttled link, are slots below 256; Gloo's own collectives use
// slots from 2^56.
constexpr std::uint64_t kGoodbyeSlot = 256;

// Practically forever, yet short enough to add to a clock.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);
// The longest time that a rank that leaves waits for its last messages to be sent.
constexpr milliseconds kLastWords{1000};
// The lifeline of a peer whose data connection fails says why: a notice, a goodbye or its death.
// That comes at once, unless this machine is very busy.
constexpr milliseconds kLongestExplanation{5000};
// Timeout of Gloo's all-reduce: long enough for slow links. Lost peers are detected otherwise.
constexpr std::chrono::minutes kNativeSumTimeout{10};

milliseconds time_left(Clock::time_point until) {
  return std::clamp(std::chrono::ceil<milliseconds>(until - Clock::now()), milliseconds(1),
                    kForever);
}

// Gloo's texts begin with "[file:line] ".
std::string without_place(const std::string& what) {
  const auto end = what.starts_with('[') ? what.find("] ") : std::string::npos;
  return end == std::string::npos ? what : what.substr(end + 2);
}

}  // namespace

// One message in flight. Gloo holds only a weak reference to the buffer, so the operation may be
// destroyed at any time.
class GlooOperation : public Operation {
 public:
  enum class Kind { send, receive };

  GlooOperation(GlooTransport& transport, int peer, Kind kind, std::span<std::byte> message)
      : transport_(transport),
        peer_(peer),
        kind_(kind),
        bytes_(message.size()),
        buffer_(transport.state_->data->createUnboundBuffer(message.data(), message.size())) {}

  void start(Channel channel) {
    const auto slot = static_cast<std::uint64_t>(channel);
    try {
      if (kind_ == Kind::send) {
        buffer_->send(peer_, slot);
      } else {
        buffer_->recv(peer_, slot);
      }
    } catch (const Error& e) {
      transport_.give_up(e.code(), e.what());
      throw transport_.explain(peer_, describe(), e.what());
    } catch (const std::exception& e) {
      throw transport_.explain(peer_, describe(), e.what());
    }
  }

  void wait(const Deadline& deadline) override {
    if (done_) return;
    std::string what;
    try {
      wait_until_over(deadline);
      // Nobody aborts this operation any more. Gloo reports an earlier abort once, even if the
      // operation has completed; the second wait tells. If it has not completed, that wait closes
      // the data connections, which are useless by now.
      if (!done_) done_ = wait_for(milliseconds(1)) || wait_for(milliseconds(1));
    } catch (const Error& e) {  // of a message that Gloo can't read (adopted_mesh.cc)
      transport_.give_up(e.code(), e.what());
    } catch (const std::exception& e) {
      what = e.what();
    }
    if (done_) return;
    if (!transport_.is_over(peer_) && Clock::now() >= deadline.at) {
      const int absent = transport_.state_->lifelines->blocked_by(peer_);
      transport_.give_up(
          ErrorCode::timeout,
          fmt::format("waited {:g} s for rank {}, which is alive but does not take part ({} {} "
                      "rank {}); raise patience if it needs longer",
                      deadline.allowed.count(), absent, describe(),
                      kind_ == Kind::send ? "to" : "from", peer_));
    }
    throw transport_.explain(peer_, describe(), what);
  }

  // Ends a current or later wait.
  void abort() {
    if (kind_ == Kind::send) {
      buffer_->abortWaitSend();
    } else {
      buffer_->abortWaitRecv();
    }
  }

 private:
  // While it exists, lifelines look for silent peers, and the wait can be aborted.
  class Waiting {
   public:
    Waiting(GlooOperation& operation, Seconds silence)
        : operation_(operation), state_(*operation.transport_.state_) {
      const std::lock_guard lock(state_.mutex);
      state_.waiting.insert(&operation);
      state_.lifelines->begin_wait(&operation, operation.peer_, silence);
    }
    ~Waiting() {
      const std::lock_guard lock(state_.mutex);
      state_.waiting.erase(&operation_);
      state_.lifelines->end_wait(&operation_);
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    GlooOperation& operation_;
    GlooTransport::State& state_;
  };

  // Returns when the operation has completed, or the world or the peer is over.
  void wait_until_over(const Deadline& deadline) {
    const Waiting waiting(*this, deadline.silence);
    while (!done_ && !transport_.is_over(peer_)) {
      if (transport_.is_leaving(peer_)) {
        transport_.await_goodbye(peer_, deadline);
      } else {
        done_ = wait_for(time_left(deadline.at));
      }
    }
  }

  bool wait_for(milliseconds timeout) {
    return kind_ == Kind::send ? buffer_->waitSend(timeout) : buffer_->waitRecv(timeout);
  }

  [[nodiscard]] std::string describe() const {
    return fmt::format("{} of {} bytes", kind_ == Kind::send ? "send" : "receive", bytes_);
  }

  GlooTransport& transport_;
  const int peer_;
  const Kind kind_;
  const std::size_t bytes_;
  GlooTransport::Buffer buffer_;
  bool done_ = false;
};

GlooTransport::GlooTransport(Connections connections)
    : rank_(connections.data->rank),
      size_(connections.data->size),
      state_(std::make_unique<State>()) {
  state_->data = std::move(connections.data);
  state_->peers.resize(static_cast<std::size_t>(size_));
  if (size_ == 1) return;
  state_->lifelines =
      std::make_unique<Lifelines>(rank_, std::move(connections.lifelines), lifeline_events());
  try {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      Peer& peer = state_->peers[static_cast<std::size_t>(rank)];
      peer.goodbye = state_->data->createUnboundBuffer(peer.last.data(), peer.last.size());
      peer.goodbye->recv(rank, kGoodbyeSlot);
    }
  } catch (const std::exception& e) {
    throw Error(ErrorCode::lost_peer, fmt::format("rank {}: a rank left right after connecting: {}",
                                                  rank_, without_place(e.what())));
  }
}

GlooTransport::~GlooTransport() {
  if (!state_.here() || !state_->lifelines) return;
  std::optional<Failure> failure;
  {
    const std::lock_guard lock(state_->mutex);
    failure = state_->failure;
  }
  if (failure) {
    state_->lifelines->give_notice(failure->notice);
  } else {
    say_goodbye();
  }
}

Lifelines::Events GlooTransport::lifeline_events() {
  return {.gave_up =
              [this](int /*peer*/, const std::string& notice) {
                record({ErrorCode::lost_peer, notice, notice});
              },
          .leaves = [this](int peer) { note_leaving(peer); },
          .died =
              [this](int peer, const std::string& why) {
                const auto lost = fmt::format("rank {}: lost rank {}: {}", rank_, peer, why);
                record({ErrorCode::lost_peer, lost, lost});
              },
          .silent =
              [this](const std::vector<int>& peers, Seconds limit) {
                const bool one = peers.size() == 1;
                give_up(ErrorCode::timeout,
                        fmt::format("no sign of life from {} {} for {:g} s: {}; raise timeout if "
                                    "such pauses are normal",
                                    one ? "rank" : "ranks", fmt::join(peers, ", "), limit.count(),
                                    one ? "its process is stopped or its network is down"
                                        : "their processes are stopped or the network is down"));
              }};
}

void GlooTransport::abort_waits() {
  for (GlooOperation* const operation : state_->waiting) operation->abort();
}

void GlooTransport::record(Failure failure) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->failure) return;
    state_->failure = std::move(failure);
    abort_waits();
    for (Peer& peer : state_->peers) {
      if (peer.goodbye) peer.goodbye->abortWaitRecv();
    }
    state_->changed.notify_all();
  }
  end_native_sum();
}

void GlooTransport::give_up(ErrorCode code, const std::string& reason) {
  const auto notice = fmt::format("rank {} gave up: {}", rank_, reason);
  record({code, fmt::format("rank {}: {}", rank_, reason), notice});
  // A rank that waits for others than the lost one must hear of it before this rank closes.
  state_->lifelines->give_notice(notice);
}

void GlooTransport::note_leaving(int peer) {
  const std::lock_guard lock(state_->mutex);
  state_->peers[static_cast<std::size_t>(peer)].leaving = true;
  abort_waits();
  state_->changed.notify_all();
}

void GlooTransport::await_goodbye(int peer, const Deadline& deadline) {
  Peer& one = state_->peers[static_cast<std::size_t>(peer)];
  const std::lock_guard turn(*one.awaiting);
  if (is_over(peer)) return;
  try {
    one.goodbye->waitRecv(time_left(deadline.at));
  } catch (const std::exception&) {
    // The connection closed: nothing more arrives.
  }
  const std::lock_guard lock(state_->mutex);
  if (!state_->failure) one.left = true;
}

void GlooTransport::end_native_sum() {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->summing) return;
  }
  // The operations inside Gloo's all-reduce cannot be aborted one by one, but a wait that times out
  // ends all operations of its mesh.
  try {
    char byte = 0;
    const auto poison = state_->data->createUnboundBuffer(&byte, 1);
    poison->waitRecv(milliseconds(1));
  } catch (const std::exception&) {
  }
}

bool GlooTransport::is_leaving(int peer) {
  const std::lock_guard lock(state_->mutex);
  return state_->peers[static_cast<std::size_t>(peer)].leaving;
}

bool GlooTransport::is_over(int peer) {
  const std::lock_guard lock(state_->mutex);
  return state_->failure || state_->peers[static_cast<std::size_t>(peer)].left;
}

Error GlooTransport::explain(int peer, const std::string& operation, const std::string& what) {
  std::unique_lock lock(state_->mutex);
  const Peer& one = state_->peers[static_cast<std::size_t>(peer)];
  state_->changed.wait_for(lock, kLongestExplanation,
                           [&] { return state_->failure || one.leaving; });
  if (state_->failure) return Error(state_->failure->code, state_->failure->message);
  if (one.leaving) {
    return Error(ErrorCode::lost_peer,
                 fmt::format("rank {}: rank {} has left ({})", rank_, peer, operation));
  }
  return Error(ErrorCode::lost_peer, fmt::format("rank {}: lost rank {}: {} ({})", rank_, peer,
                                                 without_place(what), operation));
}

Pending GlooTransport::start_send(int peer, Channel channel, std::span<const std::byte> message) {
  // Gloo has one kind of buffer for both directions; it only reads from that of a send.
  const std::span writable(const_cast<std::byte*>(message.data()), message.size());
  auto operation =
      std::make_unique<GlooOperation>(*this, peer, GlooOperation::Kind::send, writable);
  operation->start(channel);
  return operation;
}

Pending GlooTransport::start_receive(int peer, Channel channel, std::span<std::byte> message) {
  auto operation =
      std::make_unique<GlooOperation>(*this, peer, GlooOperation::Kind::receive, message);
  operation->start(channel);
  return operation;
}

void GlooTransport::abandon(const std::string& reason) noexcept {
  if (!state_.here() || !state_->lifelines) return;
  try {
    auto notice = fmt::format("rank {} gave up: {}", rank_, reason);
    record({ErrorCode::lost_peer, notice, notice});
    {
      // An earlier failure explains more, also to the other ranks.
      const std::lock_guard lock(state_->mutex);
      notice = state_->failure->notice;
    }
    state_->lifelines->give_notice(notice);
  } catch (const std::exception&) {
    // Out of memory; the other ranks see the connections close.
  }
}

void GlooTransport::say_goodbye() noexcept {
  state_->lifelines->say_goodbye();
  const auto until = Clock::now() + kLastWords;
  std::array<char, 1> last{};
  std::vector<Buffer> goodbyes;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    try {
      auto buffer = state_->data->createUnboundBuffer(last.data(), last.size());
      buffer->send(peer, kGoodbyeSlot);
      goodbyes.push_back(std::move(buffer));
    } catch (const std::exception&) {
      // This peer has already left.
    }
  }
  for (const Buffer& buffer : goodbyes) {
    try {
      buffer->waitSend(time_left(until));
    } catch (const std::exception&) {
    }
  }
}

bool GlooTransport::native_sum(std::span<float> values, const WaitLimits& limits) {
  if (size_ == 1 || values.empty()) return true;
  const int previous = (rank_ + size_ - 1) % size_;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->failure) throw Error(state_->failure->code, state_->failure->message);
    state_->summing = true;
    state_->lifelines->begin_wait(this, previous, limits.silence);
  }
  std::string what;
  try {
    gloo::AllreduceOptions options(state_->data);
    options.setOutput(values.data(), values.size());
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
    options.setTimeout(kNativeSumTimeout);
    gloo::allreduce(options);
  } catch (const std::exception& e) {
    what = e.what();
    if (what.empty()) what = "unknown";
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->summing = false;
    state_->lifelines->end_wait(this);
  }
  if (what.empty()) return true;
  throw explain(previous, fmt::format("Gloo's sum of {} floats", values.size()), what);
}

}  // namespace thinreduce
