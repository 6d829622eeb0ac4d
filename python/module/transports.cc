// Connects ranks: through a store that Python provides, at an address, or inside this process.
#include "python/module/transports.h"

#include <gloo/rendezvous/store.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "python/module/bindings.h"
#include "thinreduce/transport/gloo/gloo.h"
#include "thinreduce/transport/threads.h"
#include "thinreduce/transport/throttle.h"

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
  // kept for connect_through() to throw, because it may be a KeyboardInterrupt.
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

Link parse_link(const std::string& text) {
  return text.empty() ? Link{} : Link::parse(text);
}

Connection with_link(std::unique_ptr<Transport> transport, const std::string& link,
                     Seconds timeout) {
  return Connection(throttle(std::move(transport), parse_link(link), timeout));
}

struct Where {
  int rank;
  int world;
  std::string master_addr;
  std::uint16_t master_port;
  std::string interface;
  double timeout;
  std::string link;
};

GlooOptions gloo_options(const Where& where) {
  return {.rank = where.rank,
          .world = where.world,
          .master_addr = where.master_addr,
          .master_port = where.master_port,
          .interface = where.interface,
          .connect_timeout = Seconds(where.timeout)};
}

Connection connect_at(const Where& where) {
  (void)parse_link(where.link);  // fails before any rank waits
  return with_link(connect_gloo(gloo_options(where)), where.link, Seconds(where.timeout));
}

Connection connect_through(const Where& where, py::object python_store) {
  (void)parse_link(where.link);
  PythonStore store(std::move(python_store), Seconds(where.timeout));
  try {
    const py::gil_scoped_release free;
    return with_link(connect_gloo(gloo_options(where), store), where.link, Seconds(where.timeout));
  } catch (const Error&) {
    if (store.failure) throw py::error_already_set(*store.failure);
    throw;
  }
}

std::vector<std::shared_ptr<Connection>> connect_inside(int world) {
  std::vector<std::shared_ptr<Connection>> result;
  for (auto& transport : connect_threads(world)) {
    result.push_back(std::make_shared<Connection>(std::move(transport)));
  }
  return result;
}

}  // namespace

void bind_transports(py::module_& module) {
  // The constructors of these objects register the classes.
  // NOLINTNEXTLINE(bugprone-unused-raii)
  py::class_<Connection, std::shared_ptr<Connection>>(module, "Connection");
  // NOLINTNEXTLINE(bugprone-unused-raii)
  py::class_<Where>(module, "Where")
      .def(py::init([](int rank, int world, std::string master_addr, std::uint16_t master_port,
                       std::string interface, double timeout, std::string link) {
             return Where{
                 rank,    world,          std::move(master_addr), master_port, std::move(interface),
                 timeout, std::move(link)};
           }),
           py::kw_only(), py::arg("rank"), py::arg("world"), py::arg("master_addr") = "127.0.0.1",
           py::arg("master_port") = 29500, py::arg("interface") = "", py::arg("timeout") = 30.0,
           py::arg("link") = "");
  module.def("check_link", [](const std::string& link) { return Link::parse(link).to_string(); });
  module.def("connect_at", &connect_at, py::call_guard<py::gil_scoped_release>());
  module.def("connect_through", &connect_through);
  module.def("connect_inside", &connect_inside);
}

}  // namespace thinreduce::python
