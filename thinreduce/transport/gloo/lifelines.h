// One TCP connection to every peer beside the data. It tells whether the peer is alive, has died,
// leaves or gives up, whatever blocks the data connections.
//
// One thread serves all lifelines of a rank. While this rank waits in an operation, the thread asks
// every peer from time to time, and the peer's thread answers, whatever its other threads do. So a
// peer that computes for long is known to be alive, and a peer that is stopped or cut off is known
// to be silent, even by a rank that waits for another one. An answer says for whom the peer itself
// waits. A connection that closes without a goodbye means that the peer has died.
//
// Messages: one byte for the kind, then
//   ?  question: nothing
//   !  answer: int32, the rank for which the peer waits; -1: for none
//   g  goodbye, the last message of a rank that leaves: nothing
//   n  notice, the last message of a rank that gives up: a text of kNoticeBytes, zero bytes at the
//      end
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "thinreduce/transport/socket.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

class Lifelines {
 public:
  // Events of a peer; called on the thread of the lifelines.
  struct Events {
    std::function<void(int peer, const std::string& notice)> gave_up;
    std::function<void(int peer)> leaves;
    std::function<void(int peer, const std::string& why)> died;
    // These peers have given no sign of life for `limit`.
    std::function<void(const std::vector<int>& peers, Seconds limit)> silent;
  };

  // `connections`: a connected, non-blocking socket by rank, empty for this rank. They close in
  // forked children.
  Lifelines(int rank, std::vector<Socket> connections, Events events);
  // Closes the connections after all peers have read the last message, or after a second.
  ~Lifelines();
  Lifelines(const Lifelines&) = delete;
  Lifelines& operator=(const Lifelines&) = delete;

  // Between these two a thread of this rank waits for `peer`. Several threads may wait.
  // `who` tells the waits of several threads apart.
  void begin_wait(const void* who, int peer, Seconds silence);
  void end_wait(const void* who);

  // Returns the rank that `peer` waits for in the end, directly or through others: the one that
  // does not take part, as far as the answers tell.
  [[nodiscard]] int blocked_by(int peer);

  // Sends the last message to all peers; only the first call counts.
  void say_goodbye() noexcept;
  void give_notice(const std::string& text) noexcept;

  static constexpr std::size_t kNoticeBytes = 511;

 private:
  struct Peer {
    int socket = -1;
    bool leaving = false;
    std::vector<char> unread;  // the beginning of a message
    Clock::time_point heard;   // its last message
    int waits_for = -1;
  };
  struct Wait {
    const void* who;
    int peer;
    Seconds silence;
    Clock::time_point began;
  };
  using Event = std::function<void()>;

  void run();
  void watch(int fd, std::uint64_t who) const;
  void poll_once(std::vector<Event>& events);
  // Reads all that has arrived from a peer.
  void read(int peer, std::vector<Event>& events);
  // Takes one message from the front of what was read; returns its length, 0 if it is incomplete.
  std::size_t take(int peer, std::vector<Event>& events);
  void end(int peer, const std::string& why, std::vector<Event>& events);
  void look_for_silence(std::vector<Event>& events);
  void send(Peer& peer, const char* bytes, std::size_t size) noexcept;
  void send_last(const std::vector<char>& message) noexcept;

  const int rank_;
  const Events events_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
  // Of all threads, oldest first: an answer names the peer of the oldest one, which is most likely
  // the one that does not end.
  std::list<Wait> waits_;
  Clock::time_point asked_;
  Clock::time_point last_turn_;  // of the thread
  Clock::time_point attentive_since_;
  bool last_sent_ = false;
  bool closing_ = false;
  Clock::time_point close_by_;
  Socket alarm_;    // an eventfd that ends the poll
  Socket watched_;  // an epoll of the alarm and all connections: its cost does not grow with them
  std::thread thread_;
};

}  // namespace thinreduce
