// Ranks that exchange messages over a process group of PyTorch. The group's connections are made as
// the user has set them up: interface, encryption, store.
//
// Gloo, which carries such a group, ends the waits for a peer when its connection closes, but for a
// message that is under way then (see waiting_threads.h). So a rank that gives up sends its peers
// the reason, which they look at when a wait fails, and closes its connections. A peer that is
// stopped, or cut off without a word, can not be told from a busy one: it is waited for until
// `patience` has passed.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "thinreduce/transport/transport.h"

namespace thinreduce::python {

// `messages` is a thinreduce._torch_messages.Messages. The GIL must be held.
[[nodiscard]] std::unique_ptr<Transport> make_torch_transport(pybind11::object messages);

}  // namespace thinreduce::python
