// Which addresses of this machine a rank uses.
#pragma once

#include <string>
#include <vector>

#include "thinreduce/transport/socket.h"

namespace thinreduce {

// Returns the addresses at which rank 0 can wait for the others, the best first; their port is 0.
//
// That is `host` alone if it is one address of this machine. It is all interfaces if `host` is an
// address that other machines translate into one of ours, or a name that stands for several
// addresses or for a loopback address: Debian gives a machine's own name such an address on the
// machine itself, and others know it by another one.
[[nodiscard]] std::vector<SocketAddress> listening_addresses(const std::string& host);

// Returns an address of this machine that its peers can reach: that of `interface` unless it is "",
// otherwise the one from which `master` is reached, otherwise the one of the default route. Returns
// a loopback address only if `master` is one, or there is no other. Throws Error{unavailable} that
// starts with `who`.
[[nodiscard]] SocketAddress address_for_peers(const std::string& who, const std::string& interface,
                                              const std::string& master);

}  // namespace thinreduce
