// The transport over connected Gloo meshes: messages, and the detection of lost ranks.
//
// Two meshes of TCP connections join the ranks. `data` carries the messages and, as the last
// message of a rank, its goodbye. `control` carries abandon notices. It is a separate mesh because
// a message that is cancelled or times out blocks or closes connections of its mesh, exactly when a
// notice must get through.
//
// Gloo does not fail an operation whose peer is gone once some of its bytes have moved. Therefore
// one watcher thread per peer waits for that peer's goodbye as long as the transport lives: a
// goodbye means that the peer has left, a connection that closes without one means that the peer is
// lost. The first loss is recorded as the root cause, and all operations end with it.
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
#include <thread>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

class GlooOperation;

class GlooTransport : public Transport {
 public:
  struct Meshes {
    std::shared_ptr<gloo::rendezvous::Context> data;
    std::shared_ptr<gloo::rendezvous::Context> control;
  };

  explicit GlooTransport(Meshes meshes);
  ~GlooTransport() override;

  [[nodiscard]] int rank() const override { return meshes_.data->rank; }
  [[nodiscard]] int size() const override { return meshes_.data->size; }
  void abandon(const std::string& reason) noexcept override;
  bool native_sum(std::span<float> values) override;

 private:
  friend class GlooOperation;
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  // A text, truncated to fit, then zero bytes.
  static constexpr std::size_t kNoticeBytes = 512;
  using NoticeBytes = std::array<char, kNoticeBytes>;

  // The reason why this world ended.
  struct Failure {
    ErrorCode code;
    std::string message;  // from this rank's point of view
    std::string notice;   // the same for the others
  };

  struct Peer {
    NoticeBytes goodbye{};
    Buffer watched;  // receives its goodbye
    bool left = false;
    bool closed = false;
    std::thread watcher;
  };

  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override;
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override;

  void watch(int peer);
  void listen_for_notices(const std::vector<int>& others);
  void stop_watching();

  // Keeps the first failure and ends all operations.
  void record(Failure failure);
  // Sends `notice` to all peers, once: the first notice is the root cause as far as this rank
  // knows.
  void notify_peers(const std::string& notice) noexcept;
  void wait_for_notices() noexcept;
  void say_goodbye() noexcept;

  // Returns whether operations with `peer` can no longer complete.
  [[nodiscard]] bool is_over(int peer);
  // Returns the Error for an operation with `peer` that failed with Gloo's text `what`.
  [[nodiscard]] Error explain(int peer, const std::string& operation, const std::string& what);
  void end_operations(int peer);

  Meshes meshes_;
  std::vector<Peer> peers_;
  NoticeBytes heard_{};
  Buffer listening_;
  std::thread listener_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  std::set<GlooOperation*> operations_;
  bool closing_ = false;
  bool summing_ = false;

  std::mutex notice_mutex_;
  bool told_ = false;
  NoticeBytes notice_{};
  std::vector<Buffer> notices_;
};

}  // namespace thinreduce
