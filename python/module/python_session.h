// A session as Python holds it, and what its bindings share.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "python/module/transports.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"
#include "thinreduce/report.h"

namespace thinreduce::python {

// A session that may be closed while Python still holds it. Its destructor waits for other threads,
// so nothing here runs with the GIL held.
class PythonSession {
 public:
  PythonSession(Connection& connection, const SessionOptions& options)
      : session_(std::make_shared<Session>(connection.take(), options)) {}
  ~PythonSession() { close(); }
  PythonSession(const PythonSession&) = delete;
  PythonSession& operator=(const PythonSession&) = delete;

  void close() {
    if (PyGILState_Check() != 0) {
      const pybind11::gil_scoped_release free;
      session_.reset();
    } else {
      session_.reset();
    }
  }

  Session& open() {
    if (!session_) throw Error(ErrorCode::bad_input, "this session is closed");
    return *session_;
  }

 private:
  std::shared_ptr<Session> session_;
};

[[nodiscard]] pybind11::dict to_dict(const Report& report);

inline pybind11::bytes to_bytes(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::span<const std::byte> view(std::string_view bytes) {
  return std::as_bytes(std::span(bytes));
}

}  // namespace thinreduce::python
