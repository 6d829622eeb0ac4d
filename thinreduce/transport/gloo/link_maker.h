// One rank's connections to all others, made by one loop that waits for all of them at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/peer_links.h"

namespace thinreduce {

class LinkMaker {
 public:
  LinkMaker(int rank, const Secret& secret, const Socket& listener, const PeerAddress& own,
            const std::vector<PeerAddress>& ranks, const Deadline& deadline, Hearing hear);

  // Throws as PeerListener::connect().
  [[nodiscard]] PeerLinks run();

 private:
  // The rank and use that an incoming connection claims.
  struct Claim {
    std::uint32_t rank;
    std::uint32_t use;
    std::string nonce;
  };
  // A connection that is not established yet: an outgoing one has a peer, an incoming one has not
  // said whose it is.
  struct Attempt {
    PeerLink link;
    int peer = -1;
    std::size_t use = 0;
    bool greeted = false;  // outgoing: the hello is sent
    std::string in;
    std::string nonce;           // this rank's, if there is a secret
    std::optional<Claim> claim;  // incoming: what the peer has yet to prove
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
  void hear();
  void hear_soon();
  void watch(const Socket& socket, std::uint32_t events, std::uint64_t id);
  void advance(std::uint64_t id);
  // These return true when they are done with the attempt, whether it is established or not.
  [[nodiscard]] bool advance_outgoing(Attempt& attempt);
  [[nodiscard]] bool advance_incoming(Attempt& attempt);
  [[nodiscard]] bool take_welcome(Attempt& attempt);
  [[nodiscard]] bool take_hello(Attempt& attempt);
  [[nodiscard]] bool take_proof(Attempt& attempt);
  // Returns the proof by one side of a connection: `side` names it.
  [[nodiscard]] std::string proof(std::string_view side, const Attempt& attempt,
                                  std::string_view peer_nonce) const;
  void establish(Attempt& attempt);
  void fail(const Attempt& attempt, const std::string& why);
  void refuse(const Attempt& attempt, const std::string& why);
  [[noreturn]] void time_out() const;
  [[nodiscard]] Error other_secret(std::uint32_t peer, const Attempt& attempt) const;
  [[nodiscard]] Error out_of_resources(int error) const;

  int rank_;
  const Secret& secret_;
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
  Hearing hear_;
  Clock::time_point hear_at_;     // never, until a connection with a secret has failed
  std::vector<std::string> why_;  // by peer, why the last attempt failed
  std::vector<std::string> refused_;
  std::size_t missing_;
  PeerLinks links_;
};

}  // namespace thinreduce
