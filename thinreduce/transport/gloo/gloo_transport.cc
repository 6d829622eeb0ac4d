#include "thinreduce/transport/gloo/gloo_transport.h"

#include <fmt/format.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace thinreduce {
namespace {

using std::chrono::milliseconds;

// Channels, and the stamps of a throttled link, are slots below 32 of the data mesh; Gloo's own
// collectives use slots from 2^56.
constexpr std::uint64_t kGoodbyeSlot = 255;
constexpr std::uint64_t kNoticeSlot = 0;

// Practically forever, yet short enough to add to a clock.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);
// The longest time that a rank that leaves or gives up waits for its last messages to be sent.
constexpr milliseconds kLastWords{1000};
// A rank that gives up closes its connections soon after its notice. A peer that sees a connection
// close waits this long for the notice, so that the error names the root cause.
constexpr milliseconds kNoticeGrace{250};
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
        buffer_(transport.meshes_.data->createUnboundBuffer(message.data(), message.size())) {
    const std::lock_guard lock(transport_.mutex_);
    transport_.operations_.insert(this);
  }

  ~GlooOperation() override {
    const std::lock_guard lock(transport_.mutex_);
    transport_.operations_.erase(this);
  }

  void start(Channel channel) {
    const auto slot = static_cast<std::uint64_t>(channel);
    try {
      if (kind_ == Kind::send) {
        buffer_->send(peer_, slot);
      } else {
        buffer_->recv(peer_, slot);
      }
    } catch (const std::exception& e) {
      throw transport_.explain(peer_, describe(), e.what());
    }
  }

  void wait(const Deadline& deadline) override {
    if (done_) return;
    // This does not hide a completion: an aborted wait is tried once more below.
    if (transport_.is_over(peer_)) abort();
    std::string what;
    try {
      done_ = wait_for(time_left(deadline.at));
      // Gloo reports an abort once, even if the operation had completed. If it had not, this second
      // wait closes the data mesh, which is useless by now.
      if (!done_) done_ = wait_for(milliseconds(1));
    } catch (const std::exception& e) {
      what = e.what();
    }
    if (done_) return;
    if (!transport_.is_over(peer_) && Clock::now() >= deadline.at) {
      auto reason = fmt::format("no answer from rank {} within {:g} s ({})", peer_,
                                deadline.allowed.count(), describe());
      auto notice = fmt::format("rank {} gave up: {}", transport_.rank(), reason);
      // Gloo has closed the data mesh; tell the other ranks why.
      transport_.notify_peers(notice);
      transport_.record({ErrorCode::timeout, fmt::format("rank {}: {}", transport_.rank(), reason),
                         std::move(notice)});
    }
    throw transport_.explain(peer_, describe(), what);
  }

  [[nodiscard]] int peer() const { return peer_; }

  // Ends a current or later wait.
  void abort() {
    if (kind_ == Kind::send) {
      buffer_->abortWaitSend();
    } else {
      buffer_->abortWaitRecv();
    }
  }

 private:
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

GlooTransport::GlooTransport(Meshes meshes)
    : meshes_(std::move(meshes)), peers_(static_cast<std::size_t>(size())) {
  if (size() == 1) return;
  try {
    std::vector<int> others;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      others.push_back(peer);
      Peer& one = peers_[static_cast<std::size_t>(peer)];
      one.watched = meshes_.data->createUnboundBuffer(one.goodbye.data(), one.goodbye.size());
      one.watched->recv(peer, kGoodbyeSlot);
      one.watcher = std::thread([this, peer] { watch(peer); });
    }
    listening_ = meshes_.control->createUnboundBuffer(heard_.data(), heard_.size());
    listener_ = std::thread([this, others] { listen_for_notices(others); });
  } catch (const std::exception& e) {
    stop_watching();
    throw Error(ErrorCode::lost_peer, fmt::format("rank {}: a rank left right after connecting: {}",
                                                  rank(), without_place(e.what())));
  }
}

GlooTransport::~GlooTransport() {
  std::optional<Failure> failure;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    failure = failure_;
    changed_.notify_all();
  }
  if (failure) {
    notify_peers(failure->notice);
    wait_for_notices();
  } else {
    say_goodbye();
  }
  stop_watching();
}

void GlooTransport::stop_watching() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    for (Peer& peer : peers_) {
      if (peer.watched) peer.watched->abortWaitRecv();
    }
  }
  if (listening_) listening_->abortWaitRecv();
  for (Peer& peer : peers_) {
    if (peer.watcher.joinable()) peer.watcher.join();
  }
  if (listener_.joinable()) listener_.join();
}

void GlooTransport::watch(int peer) {
  Peer& one = peers_[static_cast<std::size_t>(peer)];
  std::string why;
  try {
    if (!one.watched->waitRecv(kForever)) return;
    // The goodbye is the last message on the connection, so everything that the peer sent has
    // arrived. Operations that cannot complete fail when the connection closes; wait for that too.
    {
      const std::lock_guard lock(mutex_);
      one.left = true;
      if (closing_) return;
    }
    one.watched->recv(peer, kGoodbyeSlot);
    one.watched->waitRecv(kForever);
  } catch (const std::exception& e) {
    why = without_place(e.what());
  }
  std::unique_lock lock(mutex_);
  if (closing_) return;
  if (one.left) {
    one.closed = true;
    lock.unlock();
    end_operations(peer);
    return;
  }
  changed_.wait_for(lock, kNoticeGrace, [this] { return closing_ || failure_; });
  if (closing_ || failure_) return;
  lock.unlock();
  auto lost = fmt::format("rank {}: lost rank {}: {}", rank(), peer, why);
  record({ErrorCode::lost_peer, lost, lost});
}

void GlooTransport::listen_for_notices(const std::vector<int>& others) {
  try {
    // Only the first notice counts. The others are received so that their senders need not wait.
    for (;;) {
      listening_->recv(others, kNoticeSlot);
      if (!listening_->waitRecv(kForever)) return;
      heard_.back() = 0;
      const std::string text(heard_.data());
      record({ErrorCode::lost_peer, text, text});
    }
  } catch (const std::exception&) {
    // The control mesh is closed because this rank gave up.
  }
}

void GlooTransport::record(Failure failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = std::move(failure);
    changed_.notify_all();
  }
  end_operations(-1);
}

void GlooTransport::end_operations(int peer) {
  bool summing = false;
  {
    const std::lock_guard lock(mutex_);
    summing = summing_;
    for (GlooOperation* operation : operations_) {
      if (peer < 0 || operation->peer() == peer) operation->abort();
    }
  }
  if (!summing) return;
  // The operations inside Gloo's all-reduce cannot be aborted one by one, but a wait that times out
  // ends all operations of its mesh.
  try {
    char byte = 0;
    const auto poison = meshes_.data->createUnboundBuffer(&byte, 1);
    poison->waitRecv(milliseconds(1));
  } catch (const std::exception&) {
  }
}

bool GlooTransport::is_over(int peer) {
  const std::lock_guard lock(mutex_);
  return failure_ || peers_[static_cast<std::size_t>(peer)].closed;
}

Error GlooTransport::explain(int peer, const std::string& operation, const std::string& what) {
  std::unique_lock lock(mutex_);
  // A closed connection often follows a failure on another rank whose notice is still in flight.
  changed_.wait_for(lock, 2 * kNoticeGrace, [this] { return failure_.has_value(); });
  if (failure_) return Error(failure_->code, failure_->message);
  if (peers_[static_cast<std::size_t>(peer)].left) {
    return Error(ErrorCode::lost_peer,
                 fmt::format("rank {}: rank {} has left ({})", rank(), peer, operation));
  }
  return Error(ErrorCode::lost_peer, fmt::format("rank {}: lost rank {}: {} ({})", rank(), peer,
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
  try {
    auto notice = fmt::format("rank {} gave up: {}", rank(), reason);
    record({ErrorCode::lost_peer, notice, notice});
    {
      // An earlier failure explains more, also to the other ranks.
      const std::lock_guard lock(mutex_);
      notice = failure_->notice;
    }
    notify_peers(notice);
    wait_for_notices();
  } catch (const std::exception&) {
    // Out of memory; the other ranks see the connections close.
  }
}

void GlooTransport::notify_peers(const std::string& notice) noexcept {
  const std::lock_guard lock(notice_mutex_);
  if (std::exchange(told_, true)) return;
  std::memcpy(notice_.data(), notice.data(), std::min(notice.size(), kNoticeBytes - 1));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      auto buffer = meshes_.control->createUnboundBuffer(notice_.data(), notice_.size());
      buffer->send(peer, kNoticeSlot);
      notices_.push_back(std::move(buffer));
    } catch (const std::exception&) {
      // This peer is gone.
    }
  }
}

void GlooTransport::wait_for_notices() noexcept {
  const std::lock_guard lock(notice_mutex_);
  const auto until = Clock::now() + kLastWords;
  for (const Buffer& buffer : notices_) {
    try {
      buffer->waitSend(time_left(until));
    } catch (const std::exception&) {
    }
  }
  notices_.clear();
}

void GlooTransport::say_goodbye() noexcept {
  const auto until = Clock::now() + kLastWords;
  NoticeBytes nothing{};
  std::vector<Buffer> goodbyes;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      auto buffer = meshes_.data->createUnboundBuffer(nothing.data(), nothing.size());
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

bool GlooTransport::native_sum(std::span<float> values) {
  if (size() == 1 || values.empty()) return true;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(failure_->code, failure_->message);
    summing_ = true;
  }
  std::string what;
  try {
    gloo::AllreduceOptions options(meshes_.data);
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
  std::unique_lock lock(mutex_);
  summing_ = false;
  if (what.empty()) return true;
  lock.unlock();
  const int previous = (rank() + size() - 1) % size();
  throw explain(previous, fmt::format("Gloo's sum of {} floats", values.size()), what);
}

}  // namespace thinreduce
