// A transport on its way from the function that connects to the session that uses it.
#pragma once

#include <memory>
#include <utility>

#include "thinreduce/error.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::python {

class Connection {
 public:
  explicit Connection(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

  // Once: a transport serves one session.
  std::unique_ptr<Transport> take() {
    if (!transport_) throw Error(ErrorCode::bad_input, "this connection serves a session already");
    return std::move(transport_);
  }

 private:
  std::unique_ptr<Transport> transport_;
};

}  // namespace thinreduce::python
