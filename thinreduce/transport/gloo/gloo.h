// Ranks as processes that talk TCP through Gloo, on one machine or on several.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "thinreduce/transport/transport.h"

namespace gloo::rendezvous {
class Store;
}

namespace thinreduce {

struct GlooOptions {
  int rank = 0;
  int world = 1;
  // Where rank 0 listens while the ranks find one another.
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 29500;
  // Network interface for the data ("eth1"). Empty: the one that reaches master_addr.
  std::string interface;
  Seconds connect_timeout{30};
};

// Connects to all other ranks. Throws Error{timeout} naming who did not answer.
//
// Gloo does not tell the length of a message: one that is shorter than the receive fills only its
// beginning, one that is longer ends the process. Writes to a lost peer raise SIGPIPE, so
// connecting ignores that signal unless the program handles it.
[[nodiscard]] std::unique_ptr<Transport> connect_gloo(const GlooOptions& options);

// The same, where the ranks meet through a store that somebody else keeps.
[[nodiscard]] std::unique_ptr<Transport> connect_gloo(const GlooOptions& options,
                                                      gloo::rendezvous::Store& store);

// Options from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and THINREDUCE_INTERFACE. Throws
// Error{bad_input} naming the variable that is missing or malformed.
[[nodiscard]] GlooOptions gloo_options_from_environment();

[[nodiscard]] bool have_gloo();

}  // namespace thinreduce
