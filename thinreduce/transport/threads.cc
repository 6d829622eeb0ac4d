// N ranks as threads of one process.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <new>
#include <optional>
#include <set>

#include "thinreduce/error.h"
#include "thinreduce/transport/process.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {
namespace {

// One half of a message: a send that waits for its receive or the reverse. The thread that comes
// second copies the bytes, outside the lock.
struct Half {
  int starter = 0;  // rank that started it
  int peer = 0;
  std::byte* memory = nullptr;
  std::size_t size = 0;
  enum class State { waiting, copying, done, cancelled } state = State::waiting;
  std::optional<Error> error;
};

// Unmatched halves in order of arrival.
struct Stream {
  std::list<std::shared_ptr<Half>> sends;
  std::list<std::shared_ptr<Half>> receives;
};

// The state that all ranks of a world share. One lock is enough: it is held for a few list
// operations per message, and a message has hundreds of kilobytes.
struct Hub {
  explicit Hub(int size)
      : world(size),
        streams(static_cast<std::size_t>(size) * static_cast<std::size_t>(size)),
        changed(static_cast<std::size_t>(size)),
        waited_for(static_cast<std::size_t>(size)),
        left(static_cast<std::size_t>(size), false) {}

  // The reference is valid until the next call.
  [[nodiscard]] Stream& stream(int from, int to, Channel channel) {
    auto& channels = streams[static_cast<std::size_t>(from) * static_cast<std::size_t>(world) +
                             static_cast<std::size_t>(to)];
    const auto index = static_cast<std::size_t>(channel);
    if (index >= channels.size()) channels.resize(index + 1);
    return channels[index];
  }

  void notify_all() {
    for (auto& condition : changed) condition.notify_all();
  }

  // Returns the rank that keeps `peer`, for which `rank` waits, from going on: one that it waits
  // for, perhaps through others, and that waits for nobody. `peer` itself if there is none.
  [[nodiscard]] int blocked_by(int rank, int peer) const {
    std::vector<int> found{peer};
    for (std::size_t next = 0; next < found.size(); ++next) {
      const auto& others = waited_for[static_cast<std::size_t>(found[next])];
      if (others.empty()) return found[next];
      for (const int other : others) {
        const bool is_new = std::ranges::find(found, other) == found.end();
        if (is_new && other != rank) found.push_back(other);
      }
    }
    return peer;
  }

  const int world;
  std::mutex mutex;
  std::vector<std::vector<Stream>> streams;      // by sender and receiver, then by channel
  std::vector<std::condition_variable> changed;  // by rank: a message wakes only its two ranks
  std::vector<std::multiset<int>> waited_for;    // by rank: the peers of its waits in progress
  std::vector<bool> left;
  std::optional<Error> failure;
  // For a rank that gives up and has no memory for a text of its own. A copy needs none.
  const Error out_of_memory{ErrorCode::lost_peer, "a rank gave up: out of memory"};
};

class ThreadOperation final : public Operation {
 public:
  ThreadOperation(std::shared_ptr<Hub> hub, std::shared_ptr<Half> half, bool sends)
      : hub_(std::move(hub)), half_(std::move(half)), sends_(sends) {}

  ~ThreadOperation() override {
    std::unique_lock lock(hub_->mutex);
    // The other side may be copying from or to this memory.
    changed().wait(lock, [&] { return half_->state != Half::State::copying; });
    if (half_->state == Half::State::waiting) half_->state = Half::State::cancelled;
  }

  void wait(const Deadline& deadline) override;

 private:
  [[nodiscard]] std::condition_variable& changed() const {
    return hub_->changed[static_cast<std::size_t>(half_->starter)];
  }
  [[nodiscard]] bool peer_left() const { return hub_->left[static_cast<std::size_t>(half_->peer)]; }
  // Returns whether there is nothing more to wait for.
  [[nodiscard]] bool over() const {
    return half_->state == Half::State::done ||
           (half_->state == Half::State::waiting && (hub_->failure || peer_left()));
  }

  std::shared_ptr<Hub> hub_;
  std::shared_ptr<Half> half_;
  bool sends_;
};

// Removes and returns the send that the next receive gets, if there is one. A cancelled send stays
// and holds up all sends after it: a rank that gives up cancels its sends one by one, and none of
// them must arrive in the place of another.
std::shared_ptr<Half> take_send(Stream& stream) {
  if (stream.sends.empty() || stream.sends.front()->state == Half::State::cancelled) return nullptr;
  auto send = stream.sends.front();
  stream.sends.pop_front();
  return send;
}

// Removes and returns the receive that gets the next send, if there is one; drops cancelled ones.
std::shared_ptr<Half> take_receive(Stream& stream) {
  if (!stream.sends.empty()) return nullptr;
  while (!stream.receives.empty()) {
    auto receive = stream.receives.front();
    stream.receives.pop_front();
    if (receive->state == Half::State::waiting) return receive;
  }
  return nullptr;
}

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(const std::shared_ptr<Hub>& hub, int rank)
      : hub_(std::make_unique<std::shared_ptr<Hub>>(hub)), rank_(rank) {}

  ~ThreadTransport() override {
    if (!hub_.here()) return;
    const std::lock_guard lock(hub().mutex);
    hub().left[static_cast<std::size_t>(rank_)] = true;
    hub().notify_all();
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return hub().world; }

  void abandon(const std::string& reason) noexcept override {
    const std::lock_guard lock(hub().mutex);
    if (!hub().failure) hub().failure = lost_by(reason);
    hub().notify_all();
  }

 private:
  [[nodiscard]] Hub& hub() const { return **hub_; }

  // Returns the error that the other ranks get when this one gives up.
  [[nodiscard]] Error lost_by(const std::string& reason) const noexcept {
    try {
      return {ErrorCode::lost_peer, fmt::format("rank {} gave up: {}", rank_, reason)};
    } catch (const std::bad_alloc&) {
      return hub().out_of_memory;
    }
  }

  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    auto half = std::make_shared<Half>();
    half->starter = rank_;
    half->peer = peer;
    // meet() only reads from the memory of a send.
    half->memory = const_cast<std::byte*>(message.data());
    half->size = message.size();
    // Made first: a half that a peer can see must belong to an operation, which cancels it.
    auto operation = std::make_unique<ThreadOperation>(*hub_, half, true);
    std::unique_lock lock(hub().mutex);
    if (hub().failure) throw Error(*hub().failure);
    Stream& stream = hub().stream(rank_, peer, channel);
    if (auto receive = take_receive(stream)) {
      meet(lock, *half, *receive);
    } else {
      stream.sends.push_back(std::move(half));
    }
    return operation;
  }

  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    auto half = std::make_shared<Half>();
    half->starter = rank_;
    half->peer = peer;
    half->memory = message.data();
    half->size = message.size();
    auto operation = std::make_unique<ThreadOperation>(*hub_, half, false);
    std::unique_lock lock(hub().mutex);
    if (hub().failure) throw Error(*hub().failure);
    Stream& stream = hub().stream(peer, rank_, channel);
    if (auto send = take_send(stream)) {
      meet(lock, *send, *half);
    } else {
      stream.receives.push_back(std::move(half));
    }
    return operation;
  }

  void meet(std::unique_lock<std::mutex>& lock, Half& send, Half& receive) {
    if (send.size != receive.size) {
      receive.error.emplace(ErrorCode::mismatch,
                            fmt::format("rank {}: rank {} sent {} bytes where {} were expected",
                                        receive.starter, send.starter, send.size, receive.size));
    } else if (send.size > 0) {
      send.state = receive.state = Half::State::copying;
      lock.unlock();
      std::memcpy(receive.memory, send.memory, send.size);
      lock.lock();
    }
    send.state = receive.state = Half::State::done;
    const int other = send.starter == rank_ ? receive.starter : send.starter;
    hub().changed[static_cast<std::size_t>(other)].notify_all();
  }

  OwnedHere<std::shared_ptr<Hub>> hub_;
  int rank_;
};

void ThreadOperation::wait(const Deadline& deadline) {
  std::unique_lock lock(hub_->mutex);
  if (!over()) {
    auto& waited_for = hub_->waited_for[static_cast<std::size_t>(half_->starter)];
    const auto wait = waited_for.insert(half_->peer);
    const bool in_time = changed().wait_until(lock, deadline.at, [&] { return over(); });
    waited_for.erase(wait);
    if (!in_time) {
      throw Error(
          ErrorCode::timeout,
          fmt::format("rank {}: waited {:g} s for rank {}, which is alive but does not "
                      "take part ({} of {} bytes {} rank {}); raise patience if it needs "
                      "longer",
                      half_->starter, deadline.allowed.count(),
                      hub_->blocked_by(half_->starter, half_->peer), sends_ ? "send" : "receive",
                      half_->size, sends_ ? "to" : "from", half_->peer));
    }
  }
  if (half_->state == Half::State::done) {
    if (half_->error) throw Error(*half_->error);
    return;
  }
  if (hub_->failure) throw Error(*hub_->failure);
  throw Error(ErrorCode::lost_peer,
              fmt::format("rank {}: rank {} has left", half_->starter, half_->peer));
}

}  // namespace

std::vector<std::unique_ptr<Transport>> connect_threads(int world) {
  if (world < 1) {
    throw Error(ErrorCode::bad_input,
                fmt::format("a world must have at least 1 rank, not {}", world));
  }
  const auto hub = std::make_shared<Hub>(world);
  std::vector<std::unique_ptr<Transport>> ranks;
  ranks.reserve(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    ranks.push_back(std::make_unique<ThreadTransport>(hub, rank));
  }
  return ranks;
}

}  // namespace thinreduce
