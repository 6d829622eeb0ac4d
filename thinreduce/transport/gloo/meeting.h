// How the ranks of a world find one another: each posts on a board where it listens, rank 0
// collects the addresses and posts the list of all, and then the ranks connect.
//
// Every rank posts one address of 35 bytes and reads one list of 35 N bytes, so rank 0 sends
// 35 N (N - 1) bytes. One deadline holds for everything that a rank does here.
#pragma once

#include <string>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/board.h"
#include "thinreduce/transport/gloo/gloo.h"
#include "thinreduce/transport/gloo/peer_links.h"

namespace thinreduce {

class Meeting {
 public:
  Meeting(const GlooOptions& options, Board& board, const Deadline& deadline)
      : options_(options), board_(board), deadline_(deadline) {}

  // Returns this rank's connections to all others. Throws Error{timeout} that names the ranks which
  // are missing, Error{mismatch} if the addresses of the ranks do not belong together or not all
  // ranks have the same secret.
  [[nodiscard]] PeerLinks connect();

  // Waits until all ranks are connected; afterwards the board is not needed any more. Throws
  // Error{timeout} that names the ranks which are not.
  void confirm();

  // Tells rank 0, or all ranks if this is rank 0, why this rank can't go on.
  void give_up(const Error& error) noexcept;

 private:
  // The message of a rank in one round: its part, or the reason why it can't go on.
  struct Round {
    std::string topic;
    std::string verdict;  // topic of rank 0's answer
    std::string missing;  // what the error says about a rank that says nothing
  };
  static const Round kAddresses;
  static const Round kConnected;

  void begin(const Round& round);
  // Posts this rank's part, and returns the parts of all ranks, one after another, as rank 0
  // collected them. All parts must have the same size.
  std::vector<char> gather(const Round& round, std::vector<char> part);
  std::vector<char> collect(const Round& round);
  // Throws if a rank has said in this round that it can't go on, or rank 0 for all.
  void hear(const Round& round);
  [[noreturn]] void name_missing(const Round& round);
  [[nodiscard]] std::vector<char> unwrap(const std::vector<char>& message, int sender) const;
  [[nodiscard]] std::vector<PeerAddress> parse(const std::vector<char>& list,
                                               const SocketAddress& own) const;

  const GlooOptions& options_;
  Board& board_;
  Deadline deadline_;
  const Round* round_ = nullptr;  // the current one
  bool said_ = false;  // whether this rank has had its say in it: its part, or the verdict
};

}  // namespace thinreduce
