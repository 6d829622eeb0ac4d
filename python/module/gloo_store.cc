// Connects over Gloo through a store that Python provides. no_gloo_store.cc replaces this file
// where Gloo is missing.
#include <gloo/rendezvous/store.h>
#include <pybind11/stl.h>

#include <chrono>
#include <string>
#include <vector>

#include "python/module/transports.h"

namespace thinreduce::python {

namespace py = pybind11;

namespace {

// A Gloo store that calls a Python object with set(key, bytes), get(key) -> bytes and
// wait(keys, seconds). Gloo calls it without the GIL.
class PythonStore : public gloo::rendezvous::Store {
 public:
  explicit PythonStore(py::object store, Seconds timeout)
      : store_(std::move(store)), timeout_(timeout) {}
  ~PythonStore() override {
    const py::gil_scoped_acquire gil;
    store_ = py::object();
  }

  void set(const std::string& key, const std::vector<char>& value) override {
    call([&] { store_.attr("set")(key, py::bytes(value.data(), value.size())); });
  }
  std::vector<char> get(const std::string& key) override {
    wait({key});
    std::vector<char> result;
    call([&] {
      const std::string bytes = py::bytes(store_.attr("get")(key));
      result.assign(bytes.begin(), bytes.end());
    });
    return result;
  }
  void wait(const std::vector<std::string>& keys) override { wait_for(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    wait_for(keys, timeout);
  }

 private:
  void wait_for(const std::vector<std::string>& keys, Seconds timeout) {
    call([&] { store_.attr("wait")(keys, timeout.count()); });
  }

  // A Python exception must not pass through Gloo, which does not hold the GIL. The first one is
  // kept for connect_through_store() to throw, because it may be a KeyboardInterrupt.
  template <typename Work>
  void call(Work&& work) {
    const py::gil_scoped_acquire gil;
    try {
      work();
    } catch (py::error_already_set& error) {
      const std::string text = error.what();
      const bool timed_out = error.matches(PyExc_TimeoutError);
      if (!timed_out && !failure) failure = std::make_unique<py::error_already_set>(error);
      throw Error(timed_out ? ErrorCode::timeout : ErrorCode::lost_peer, text);
    }
  }

  py::object store_;
  Seconds timeout_;

 public:
  std::unique_ptr<py::error_already_set> failure;  // access needs the GIL
};

}  // namespace

std::unique_ptr<Transport> connect_through_store(const GlooOptions& options, py::object store) {
  PythonStore gloo_store(std::move(store), options.connect_timeout);
  try {
    const py::gil_scoped_release free;
    return connect_gloo(options, gloo_store);
  } catch (const Error&) {
    if (gloo_store.failure) throw py::error_already_set(*gloo_store.failure);
    throw;
  }
}

}  // namespace thinreduce::python
