// How the module connects ranks.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "thinreduce/error.h"
#include "thinreduce/transport/gloo/gloo.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::python {

// Holds a transport between the Python call that connects and the one that makes the session.
class Connection {
 public:
  explicit Connection(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

  // Returns the transport; throws the second time, because a transport serves one session.
  std::unique_ptr<Transport> take() {
    if (!transport_)
      throw Error(ErrorCode::bad_input, "this connection is in use by a session; connect again");
    return std::move(transport_);
  }

 private:
  std::unique_ptr<Transport> transport_;
};

// Connects over Gloo. The ranks meet through `store`, a Python object with set(key, bytes),
// get(key) -> bytes and wait(keys, seconds). The GIL must be held.
[[nodiscard]] std::unique_ptr<Transport> connect_through_store(const GlooOptions& options,
                                                               pybind11::object store);

}  // namespace thinreduce::python
