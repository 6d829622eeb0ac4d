// Ranks as processes connected over TCP by Gloo, on one machine or several.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "thinreduce/export.h"
#include "thinreduce/transport/authenticate.h"
#include "thinreduce/transport/transport.h"

namespace gloo::rendezvous {
class Store;
}

namespace thinreduce {

struct GlooOptions {
  int rank = 0;
  int world = 1;
  // The address at which rank 0 listens while the ranks connect.
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 29500;
  // Network interface for the data, as in "eth1". Empty: the one that reaches master_addr.
  std::string interface;
  Seconds connect_timeout{30};
  // With a secret, ranks prove that they know it before anything else of theirs is believed, and
  // every message has a tag (../authenticate.h).
  Secret secret = {};
};

// Connects to all other ranks. Throws Error{timeout} naming the ranks that did not answer,
// Error{mismatch} if this rank has another secret than they.
//
// Gloo does not report the length of a message: a message shorter than the receive fills only its
// beginning, a longer one is Error{bad_frame}. Writes to a lost peer raise SIGPIPE, so connecting
// ignores that signal unless the program handles it.
[[nodiscard]] THINREDUCE_EXPORT std::unique_ptr<Transport> connect_gloo(const GlooOptions& options);

// Connects through a rendezvous store that the caller provides.
[[nodiscard]] THINREDUCE_EXPORT std::unique_ptr<Transport> connect_gloo(
    const GlooOptions& options, gloo::rendezvous::Store& store);

// Returns options from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, THINREDUCE_INTERFACE and
// THINREDUCE_SECRET or THINREDUCE_SECRET_FILE. Throws Error{bad_input} naming the variable that is
// missing or malformed.
[[nodiscard]] THINREDUCE_EXPORT GlooOptions gloo_options_from_environment();

// Returns whether this build has the gloo transport.
[[nodiscard]] THINREDUCE_EXPORT bool have_gloo();

}  // namespace thinreduce
