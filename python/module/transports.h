// Holds a transport between the Python call that connects and the one that makes the session.
#pragma once

#include <memory>
#include <utility>

#include "thinreduce/error.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::python {

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

}  // namespace thinreduce::python
