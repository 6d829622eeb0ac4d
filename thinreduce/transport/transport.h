// A transport moves messages between ranks. Nothing more: sums, frames and retries are not its job.
//
// Messages from one rank to another on one channel arrive in the order they were sent, and a
// receive must ask for exactly the length that was sent. An operation is started, then waited for;
// its memory must stay in place until the operation is waited for or destroyed.
//
// One thread at a time uses a transport. When a rank dies, leaves or abandons, every wait on every
// other rank ends with an Error that names it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace thinreduce {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// When a wait gives up, and what to say then.
struct Deadline {
  Clock::time_point at;
  Seconds allowed;

  static Deadline after(Seconds allowed) {
    return {Clock::now() + std::chrono::duration_cast<Clock::duration>(allowed), allowed};
  }
};

// Independent streams between the same two ranks.
enum class Channel : std::uint8_t {
  data = 0,       // what the collectives move
  header = 1,     // frame headers that announce a payload on `data`
  agreement = 2,  // what the ranks compare before a bucket is reduced; runs ahead of the data
};

class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  // Gives the memory back. An operation that was not waited for is cancelled.
  virtual ~Operation() = default;
  // Returns when the memory may be read (receive) or reused (send); throws Error otherwise.
  virtual void wait(const Deadline& deadline) = 0;
};

using Pending = std::unique_ptr<Operation>;

struct Traffic {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
};

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  // Leaves: peers that still wait for this rank get an error, peers that do not go on.
  virtual ~Transport() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // Start an operation. An empty message is sent and received like any other.
  [[nodiscard]] Pending send(int peer, Channel channel, std::span<const std::byte> message);
  [[nodiscard]] Pending receive(int peer, Channel channel, std::span<std::byte> message);

  // This rank can't go on: every wait on every rank ends with `reason`. Final.
  virtual void abandon(const std::string& reason) noexcept = 0;

  // Sums in place with the backend's own all-reduce, so that ours can be compared with it.
  // False when the backend has none.
  virtual bool native_sum(std::span<float> /*values*/) { return false; }

  // What was started so far, by peer.
  [[nodiscard]] const std::vector<Traffic>& traffic() const { return traffic_; }
  [[nodiscard]] Traffic total_traffic() const;

 private:
  virtual Pending start_send(int peer, Channel channel, std::span<const std::byte> message) = 0;
  virtual Pending start_receive(int peer, Channel channel, std::span<std::byte> message) = 0;
  Traffic& with(int peer);

  std::vector<Traffic> traffic_;
};

}  // namespace thinreduce
