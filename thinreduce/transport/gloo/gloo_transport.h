// The transport over connected ranks: Gloo carries the messages, lifelines detect lost ranks.
//
// Gloo's mesh of TCP connections carries the messages and, as the last message of a rank, its
// goodbye: everything that the rank sent has arrived before it. Lifelines are connections apart,
// because a message that is cancelled blocks its connection exactly when a notice must get through,
// and because Gloo does not fail an operation whose peer is gone once some of its bytes have moved.
//
// The first failure that this rank sees or hears of is recorded as the root cause, all operations
// end with it, and this rank passes it on to its peers.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/lifelines.h"
#include "thinreduce/transport/process.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

class GlooOperation;

class GlooTransport : public Transport {
 public:
  struct Connections {
    std::shared_ptr<gloo::rendezvous::Context> data;
    // By rank, empty for this rank itself; none in a world of one rank.
    std::vector<Socket> lifelines;
  };

  explicit GlooTransport(Connections connections);
  ~GlooTransport() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void abandon(const std::string& reason) noexcept override;
  bool native_sum(std::span<float> values, const WaitLimits& limits) override;

 private:
  friend class GlooOperation;
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  // The reason why this world ended.
  struct Failure {
    ErrorCode code;
    std::string message;  // from this rank's point of view
    std::string notice;   // the same for the others
  };

  struct Peer {
    std::array<char, 1> last{};
    Buffer goodbye;        // receives `last`
    bool leaving = false;  // its lifeline says so; some of its messages may still be in flight
    bool left = false;     // all of its messages have arrived
    // Held by the one thread that waits for `goodbye`: Gloo ends one wait per message.
    std::unique_ptr<std::mutex> awaiting = std::make_unique<std::mutex>();
  };

  // Everything that a forked child must not destroy.
  struct State {
    std::shared_ptr<gloo::rendezvous::Context> data;
    std::vector<Peer> peers;
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Failure> failure;
    std::set<GlooOperation*> waiting;  // operations whose waits can be aborted
    bool summing = false;
    std::unique_ptr<Lifelines> lifelines;  // the last member: its thread uses the others
  };

  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override;
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override;

  [[nodiscard]] Lifelines::Events lifeline_events();
  // Ends the waits of all threads. The caller holds the lock.
  void abort_waits();
  // Keeps the first failure and ends all operations.
  void record(Failure failure);
  // Records a failure that this rank found, and tells the others.
  void give_up(ErrorCode code, const std::string& reason);
  void note_leaving(int peer);
  // Waits until everything that a leaving peer sent has arrived.
  void await_goodbye(int peer, const Deadline& deadline);
  void say_goodbye() noexcept;

  [[nodiscard]] bool is_leaving(int peer);
  // Returns whether operations with `peer` can no longer complete.
  [[nodiscard]] bool is_over(int peer);
  // Returns the Error for an operation with `peer` that failed with Gloo's text `what`.
  [[nodiscard]] Error explain(int peer, const std::string& operation, const std::string& what);
  void end_native_sum();

  const int rank_;
  const int size_;
  OwnedHere<State> state_;
};

}  // namespace thinreduce
