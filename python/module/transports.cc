// Connects ranks: through a store that Python provides, at an address, over a process group of
// PyTorch, or inside this process.
#include "python/module/transports.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "python/module/bindings.h"
#include "python/module/torch_transport.h"
#include "thinreduce/transport/authenticate.h"
#include "thinreduce/transport/gloo/gloo.h"
#include "thinreduce/transport/throttle.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::python {

namespace py = pybind11;

namespace {

Link parse_link(const std::string& text) {
  return text.empty() ? Link{} : Link::parse(text);
}

Connection with_link(std::unique_ptr<Transport> transport, const std::string& link,
                     Seconds timeout) {
  return Connection(throttle(std::move(transport), parse_link(link), timeout));
}

// None: that of the environment; "": none.
using GivenSecret = std::optional<std::string>;

Secret secret_of(const GivenSecret& given) {
  if (!given) return Secret::from_environment();
  return given->empty() ? Secret() : Secret::from_text(*given);
}

struct Where {
  int rank;
  int world;
  std::string master_addr;
  std::uint16_t master_port;
  std::string interface;
  double timeout;
  std::string link;
  Secret secret;
};

GlooOptions gloo_options(const Where& where) {
  return {.rank = where.rank,
          .world = where.world,
          .master_addr = where.master_addr,
          .master_port = where.master_port,
          .interface = where.interface,
          .connect_timeout = Seconds(where.timeout),
          .secret = where.secret};
}

Connection connect_at(const Where& where) {
  (void)parse_link(where.link);  // fails before any rank waits
  return with_link(connect_gloo(gloo_options(where)), where.link, Seconds(where.timeout));
}

Connection connect_through(const Where& where, py::object store) {
  (void)parse_link(where.link);
  auto transport = connect_through_store(gloo_options(where), std::move(store));
  const py::gil_scoped_release free;
  return with_link(std::move(transport), where.link, Seconds(where.timeout));
}

Connection connect_torch(py::object messages, const std::string& link, double timeout,
                         const GivenSecret& given) {
  (void)parse_link(link);
  const Secret secret = secret_of(given);
  auto transport = make_torch_transport(std::move(messages));
  const py::gil_scoped_release free;
  transport = authenticate(std::move(transport), secret, Seconds(timeout));
  return with_link(std::move(transport), link, Seconds(timeout));
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
      .def(
          py::init([](int rank, int world, std::string master_addr, std::uint16_t master_port,
                      std::string interface, double timeout, std::string link,
                      const GivenSecret& secret) {
            return Where{
                rank,    world,           std::move(master_addr), master_port, std::move(interface),
                timeout, std::move(link), secret_of(secret)};
          }),
          py::kw_only(), py::arg("rank"), py::arg("world"), py::arg("master_addr") = "127.0.0.1",
          py::arg("master_port") = 29500, py::arg("interface") = "", py::arg("timeout") = 30.0,
          py::arg("link") = "", py::arg("secret") = py::none());
  module.def("check_link", [](const std::string& link) { return Link::parse(link).to_string(); });
  module.def("connect_at", &connect_at, py::call_guard<py::gil_scoped_release>());
  module.def("connect_through", &connect_through);
  module.def("connect_torch", &connect_torch, py::arg("messages"), py::kw_only(), py::arg("link"),
             py::arg("timeout"), py::arg("secret") = py::none());
  module.def("has_secret",
             [](const GivenSecret& given) { return static_cast<bool>(secret_of(given)); });
  module.def("connect_inside", &connect_inside);
  module.def("have_gloo", &have_gloo);
}

}  // namespace thinreduce::python
