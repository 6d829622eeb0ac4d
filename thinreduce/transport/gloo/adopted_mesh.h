// Makes Gloo use TCP connections that thinreduce has made and checked.
//
// By itself, every pair of Gloo listens at a port of its own and takes the first connection for its
// peer; from a stranger's connection, 48 bytes end the process. A pair can't be made without such a
// listener, but here it is closed before Gloo could accept anything from it.
//
// Bytes of a peer that Gloo can't read are no end of the process either: the headers of messages
// are checked first, and operations with this peer throw Error{bad_frame}.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/device.h>

#include <memory>

#include "thinreduce/transport/gloo/peer_links.h"

namespace thinreduce {

using Mesh = std::shared_ptr<gloo::rendezvous::Context>;

// Returns the mesh of a rank over its data connections, which it takes out of `links`. `device`
// must be a TCP device of Gloo.
[[nodiscard]] Mesh adopt(int rank, PeerLinks& links,
                         const std::shared_ptr<gloo::transport::Device>& device);

}  // namespace thinreduce
