// Connects the lifelines of all ranks.
#pragma once

#include <gloo/rendezvous/store.h>

#include <string>
#include <vector>

#include "thinreduce/transport/transport.h"

namespace thinreduce {

struct LifelineMeeting {
  int rank = 0;
  int world = 1;
  std::string host;  // this rank's address, at which its peers reach it
  Deadline deadline;
};

// Returns a connected, non-blocking socket by rank, -1 for this rank itself; they close in forked
// children. The ranks exchange addresses through the store: N values of about 30 bytes, which each
// rank reads once. Every rank listens and connects to the ranks below its own. Connections of
// strangers are closed: a rank shows a secret that only the store knows. Throws Error{timeout}
// naming the ranks that did not connect, Error{unavailable}.
[[nodiscard]] std::vector<int> connect_lifelines(const LifelineMeeting& meeting,
                                                 gloo::rendezvous::Store& store);

}  // namespace thinreduce
