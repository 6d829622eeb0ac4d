// A transport moves messages between ranks. Sums, frames and retries are not its job.
//
// Messages from one rank to another on one channel arrive in the order in which they were sent, and
// a receive must ask for exactly the length that was sent. An operation is started, then awaited;
// its memory must stay valid until the operation has completed or is destroyed.
//
// Only one thread at a time may use a transport, abandon() and now() excepted. Another thread uses
// a track: a transport to the same ranks whose messages are independent of this one's. When a rank
// dies, leaves or abandons, every wait on every other rank ends with an Error that names it.
//
// A peer that computes for long is alive and is waited for. Over gloo every rank answers its peers
// on a thread of its own, so a peer that is silent (stopped, or cut off) is told from one that is
// busy. Ranks that are threads of one process are always alive. MPI cannot tell.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/export.h"

namespace thinreduce {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// How long a rank waits for a peer.
struct THINREDUCE_EXPORT WaitLimits {
  static constexpr Seconds kDefaultPatience{30 * 60};

  // Not explicit, so that a timeout alone may be given.
  WaitLimits(Seconds longest_silence = Seconds{60},  // NOLINT(google-explicit-constructor)
             Seconds longest_wait = kDefaultPatience)
      : silence(longest_silence), patience(longest_wait) {}

  Seconds silence;   // of a peer that gives no sign of life
  Seconds patience;  // with a peer that is alive but does not take part; 0 or infinite: forever

  // Throws Error{bad_input} unless silence is above 0 and patience at least 0.
  void check() const;
};

// The time at which a wait gives up.
struct THINREDUCE_EXPORT Deadline {
  Clock::time_point at;  // whatever the peer does
  Seconds allowed;       // the time until then, for the error text
  Seconds silence;       // of the peer

  // Both limits are `allowed`, which may be infinite. Throws Error{bad_input} for a negative time
  // and for NaN.
  static Deadline after(Seconds allowed);
  static Deadline after(const WaitLimits& limits);
};

// Independent streams between the same two ranks. A track has its own three, see on_track().
enum class Channel : std::uint8_t {
  data = 0,       // messages of the collectives
  header = 1,     // frame headers and checksums that belong to messages on `data`
  agreement = 2,  // checks before a bucket is reduced
};

// The largest number of a track. Channels of tracks must stay below 128, see throttle.cc.
inline constexpr int kMaxTracks = 16;

// Returns the channel of the transport that carries a channel of its track `number`.
[[nodiscard]] constexpr Channel on_track(int number, Channel channel) {
  return static_cast<Channel>(4 * number + static_cast<int>(channel));
}

class THINREDUCE_EXPORT Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  // Releases the memory. An operation that has not completed is cancelled.
  virtual ~Operation() = default;
  // Returns once the memory may be read (receive) or reused (send). Throws Error if the operation
  // fails or the deadline passes.
  virtual void wait(const Deadline& deadline) = 0;
};

using Pending = std::unique_ptr<Operation>;

struct THINREDUCE_EXPORT Traffic {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;

  Traffic& operator+=(const Traffic& more);
};

// A point in the course of one thread's messages, from which another thread goes on.
struct Moment {
  Clock::time_point time;
  std::uint64_t chain = 0;  // length of the longest chain of messages until then, if it is counted
};

class THINREDUCE_EXPORT Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  // Leaves the world. Peers that still wait for this rank get an error; others continue.
  virtual ~Transport() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // Start an operation. Empty messages are allowed.
  [[nodiscard]] Pending send(int peer, Channel channel, std::span<const std::byte> message);
  [[nodiscard]] Pending receive(int peer, Channel channel, std::span<std::byte> message);

  // Returns the time on this rank's clock, for measurements; deadlines are in real time. May be
  // called from any thread. A simulated cluster has a virtual clock.
  [[nodiscard]] virtual Clock::time_point now() const { return Clock::now(); }
  // For a virtual clock, which counts what threads compute: returns the time that the calling
  // thread has computed, and takes note that `own` of that time was this thread's part of work
  // which all threads of the rank together did in `elapsed`. A real clock needs neither.
  [[nodiscard]] virtual std::optional<std::chrono::nanoseconds> counted_time() const { return {}; }
  virtual void count_work(std::chrono::nanoseconds /*own*/, std::chrono::nanoseconds /*elapsed*/) {}

  // Declares that this rank cannot continue: every wait on every rank ends with `reason`. Final.
  virtual void abandon(const std::string& reason) noexcept = 0;

  // Opens track `number`, 1 to kMaxTracks, for another thread. All ranks must use the same number
  // for messages to one another. The track must be destroyed before this transport.
  [[nodiscard]] virtual std::unique_ptr<Transport> open_track(int number);

  // Carry the time from one clock to another, where clocks are virtual. A thread calls hand_over()
  // when it passes its work on or has done it. The thread of a track calls go_on_from() when it
  // takes up work, and calls it on the transport itself to deliver a result there.
  virtual Moment hand_over() { return {.time = now()}; }
  virtual void go_on_from(const Moment& /*moment*/) {}

  // Sums in place with the backend's own all-reduce, as a baseline for benchmarks. Returns false if
  // the backend has none. `limits` bound a silent peer only: the backend's waits are its own.
  virtual bool native_sum(std::span<float> /*values*/, const WaitLimits& /*limits*/ = {}) {
    return false;
  }

  // Returns the traffic started so far, that of tracks included, indexed by peer.
  [[nodiscard]] std::vector<Traffic> traffic() const;
  [[nodiscard]] Traffic total_traffic() const;

 protected:
  // Counts the traffic of this transport in that of `whole`, too, which must outlive it: for a
  // track that does not send through `whole`.
  void count_in(Transport& whole) { whole_ = &whole; }

 private:
  // Both may be called by several threads at once for different channels, and so may the waits of
  // the operations.
  virtual Pending start_send(int peer, Channel channel, std::span<const std::byte> message) = 0;
  virtual Pending start_receive(int peer, Channel channel, std::span<std::byte> message) = 0;
  void require_peer(int peer) const;
  void count(int peer, const Traffic& more);

  Transport* whole_ = nullptr;
  mutable std::mutex traffic_mutex_;
  std::vector<Traffic> traffic_;
};

// Returns N ranks as threads of one process, one transport per rank, all connected: the embedded
// default. Each may be used and destroyed on its own thread. A message is copied once, from the
// sender's memory to the receiver's.
[[nodiscard]] THINREDUCE_EXPORT std::vector<std::unique_ptr<Transport>> connect_threads(int world);

}  // namespace thinreduce
