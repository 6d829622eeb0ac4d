// TCP connections between all ranks, made and checked before Gloo gets them.
//
// While the ranks meet, every rank listens at one port. Of two ranks the higher one connects, once
// per use, and each side proves that it knows the meeting: it sends the token that the other side
// has posted with its address. Integers are little-endian:
//   hello    magic "thinlnk1", token of the listening rank, u32 rank, u32 use
//   welcome  magic "thinlnk1", token of the connecting rank
// With a secret, each side also proves to the other that it knows it (../proof.h):
//   hello    magic "thinlnk2", token of the listening rank, u32 rank, u32 use, nonce of 32 bytes
//   welcome  magic "thinlnk2", token of the connecting rank, nonce of 32 bytes, proof of 32 bytes
//   proof    of the connecting rank, 32 bytes
// A connection that sends anything else is closed, and the ranks go on.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/transport/authenticate.h"
#include "thinreduce/transport/socket.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

// Two ranks have one connection per use: one for messages, which Gloo carries, and a lifeline.
inline constexpr std::size_t kData = 0;
inline constexpr std::size_t kLifeline = 1;
inline constexpr std::size_t kUses = 2;

using Token = std::array<char, 16>;

// Where a rank listens, and the token that a peer must send there.
struct PeerAddress {
  SocketAddress address;
  Token token{};
  bool secret = false;  // whether the rank has one

  static constexpr std::size_t kBytes = 1 + 16 + 2 + sizeof(Token);
  // Family (4 or 6, 16 more if the rank has a secret), IP address, port in network order, token.
  [[nodiscard]] std::array<char, kBytes> to_bytes() const;
  // Throws Error{bad_frame} unless `bytes` are of to_bytes(). An IPv6 address that is valid only on
  // one network is taken for one on the network of `own`.
  static PeerAddress parse(std::span<const char> bytes, const SocketAddress& own);
};

struct PeerLink {
  Socket socket;
  SocketAddress address;  // of the peer
};

// By peer, then by use; empty at the rank's own place.
using PeerLinks = std::vector<std::array<PeerLink, kUses>>;

// Throws the Error of a rank that has given up.
using Hearing = std::function<void()>;

class PeerListener {
 public:
  // Listens at an address of this machine, whatever its port. Throws Error{unavailable}.
  PeerListener(int rank, SocketAddress address, const Secret& secret = {});

  [[nodiscard]] const PeerAddress& address() const { return own_; }

  // Connects to all other ranks and stops listening. `ranks` has the address of every rank. Throws
  // Error{timeout} that names the ranks without a connection at the deadline, Error{unavailable} if
  // this process runs out of file descriptors, Error{mismatch} if a rank has another secret.
  // With a secret, `hear` is called from time to time while connections fail.
  [[nodiscard]] PeerLinks connect(const std::vector<PeerAddress>& ranks, const Deadline& deadline,
                                  const Hearing& hear = {});

 private:
  int rank_;
  Secret secret_;
  PeerAddress own_;
  Socket listener_;
};

}  // namespace thinreduce
