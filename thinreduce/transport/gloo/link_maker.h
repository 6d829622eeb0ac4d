// One rank's connections to all others, made by one loop that waits for all of them at once.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/peer_links.h"

namespace thinreduce {

class LinkMaker {
 public:
  LinkMaker(int rank, const Socket& listener, const PeerAddress& own,
            const std::vector<PeerAddress>& ranks, const Deadline& deadline);

  // Throws as PeerListener::connect().
  [[nodiscard]] PeerLinks run();

 private:
  // A connection that is not established yet: an outgoing one has a peer, an incoming one has not
  // said whose it is.
  struct Attempt {
    PeerLink link;
    int peer = -1;
    std::size_t use = 0;
    bool greeted = false;  // outgoing: the hello is sent
    std::string in;
    Clock::time_point since;
  };
  struct Unreached {
    int peer;
    std::size_t use;
  };

  void dial(int peer, std::size_t use);
  void dial_again();
  void accept_all();
  void drop_silent();
  void watch(const Socket& socket, std::uint32_t events, std::uint64_t id);
  void advance(std::uint64_t id);
  // These return true when they are done with the attempt, whether it is established or not.
  [[nodiscard]] bool advance_outgoing(Attempt& attempt);
  [[nodiscard]] bool advance_incoming(Attempt& attempt);
  void establish(Attempt& attempt);
  void fail(const Attempt& attempt, const std::string& why);
  void refuse(const Attempt& attempt, const std::string& why);
  [[noreturn]] void time_out() const;
  [[nodiscard]] Error out_of_resources(int error) const;

  int rank_;
  const Socket& listener_;
  const PeerAddress& own_;
  const std::vector<PeerAddress>& ranks_;
  Deadline deadline_;
  Socket events_;  // epoll
  std::uint64_t next_id_ = 1;
  std::unordered_map<std::uint64_t, Attempt> attempts_;
  std::size_t incoming_ = 0;          // attempts without a peer
  std::vector<Unreached> unreached_;  // to be dialled again
  Clock::time_point dial_at_;
  Clock::time_point look_at_;
  std::vector<std::string> why_;  // by peer, why the last attempt failed
  std::vector<std::string> refused_;
  std::size_t missing_;
  PeerLinks links_;
};

}  // namespace thinreduce
