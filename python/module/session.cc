// A session, and its buckets in flight.
#include "thinreduce/engine/session.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "python/module/bindings.h"
#include "python/module/floats_at.h"
#include "python/module/python_session.h"
#include "python/module/transports.h"
#include "thinreduce/plan/plan_fields.h"

namespace thinreduce::python {

namespace py = pybind11;

py::dict to_dict(const Report& report) {
  py::dict stages;
  stages["encode"] = report.stages.encode;
  stages["wire"] = report.stages.wire;
  stages["decode"] = report.stages.decode;
  stages["wait"] = report.stages.wait;
  py::dict result;
  result["step"] = report.step;
  result["elements"] = report.elements;
  result["payload_bytes"] = report.payload_bytes;
  result["bytes_sent"] = report.bytes_sent;
  result["bytes_received"] = report.bytes_received;
  result["queued"] = report.queued;
  result["total"] = report.total;
  result["stages"] = stages;
  result["statistics"] = report.statistics;
  result["outliers"] = report.outliers;
  return result;
}

namespace {

template <typename Value>
py::object shown(const Value& value) {
  return py::cast(value);
}

template <typename Part>
py::object shown(const std::vector<Part>& parts);

template <typename Record>
py::dict dict_of(const Record& record) {
  py::dict result;
  for_fields(record, [&](const char* name, const auto& value) { result[name] = shown(value); });
  return result;
}

template <typename Part>
py::object shown(const std::vector<Part>& parts) {
  py::list list;
  for (const Part& part : parts) list.append(dict_of(part));
  return list;
}

// A bucket that was submitted.
class Pending {
 public:
  explicit Pending(std::future<Report> future) : future_(std::move(future)) {}

  bool wait(double seconds) {
    return future_.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
  }
  Report get() { return future_.get(); }

 private:
  std::future<Report> future_;
};

using NamedShape = std::tuple<std::string, std::vector<std::int64_t>>;

BucketLayout make_layout(std::uint32_t id, std::size_t elements,
                         const std::vector<NamedShape>& tensors, const std::string& spec,
                         const std::string& name) {
  BucketLayout layout{.id = id, .elements = 0, .tensors = {}, .spec = spec, .name = name};
  for (const auto& [tensor, shape] : tensors) layout.add(tensor, shape);
  layout.elements = elements;
  return layout;
}

std::unique_ptr<Pending> submit(PythonSession& session, const BucketHandle& bucket,
                                std::uintptr_t address, std::uintptr_t second_moment) {
  const std::size_t elements = bucket.layout().elements;
  std::span<const float> moment;
  if (second_moment != 0) moment = floats_at(second_moment, elements);
  // A thread of the engine may hold a lock of the session while it waits for the GIL.
  const py::gil_scoped_release free;
  return std::make_unique<Pending>(
      session.open().submit(bucket, floats_at(address, elements), moment));
}

py::dict to_dict(const Reconfiguration& change) {
  py::dict result;
  result["steps"] = change.steps;
  result["repeat"] = change.repeat;
  result["lost"] = change.lost;
  result["left"] = change.left;
  result["joined"] = change.joined;
  result["source"] = change.source;
  result["seconds"] = change.seconds;
  result["text"] = change.text;
  return result;
}

std::vector<py::bytes> redistribute_bytes(const std::vector<std::string>& states, int world) {
  std::vector<std::vector<std::byte>> given;
  for (const auto& state : states) {
    const auto bytes = view(state);
    given.emplace_back(bytes.begin(), bytes.end());
  }
  std::vector<py::bytes> result;
  for (const auto& state : redistribute(given, world)) result.push_back(to_bytes(state));
  return result;
}

}  // namespace

void bind_session(py::module_& module) {
  using release = py::call_guard<py::gil_scoped_release>;

  py::class_<Pending>(module, "Pending")
      .def("wait", &Pending::wait, py::arg("seconds"), release())
      .def("get", [](Pending& pending) {
        Report report;
        {
          const py::gil_scoped_release free;
          report = pending.get();
        }
        return to_dict(report);
      });

  py::class_<BucketLayout>(module, "Layout")
      .def(py::init(&make_layout), py::arg("id"), py::arg("elements"), py::arg("tensors"),
           py::arg("spec") = "", py::arg("name") = "")
      .def_readonly("id", &BucketLayout::id)
      .def_readonly("elements", &BucketLayout::elements)
      .def_readonly("spec", &BucketLayout::spec);

  // NOLINTNEXTLINE(bugprone-unused-raii): its constructor registers it
  py::class_<BucketHandle>(module, "Bucket");

  py::class_<SessionOptions>(module, "SessionOptions")
      .def(py::init([](std::string spec, double timeout, double patience, std::size_t min_elements,
                       std::uint64_t warmup_steps, std::uint64_t check_replicas_every, int threads,
                       std::uint64_t seed, bool momentum_inside_ok, std::string caller_settings,
                       const std::string& guard, double guard_factor) {
             return SessionOptions{.spec = std::move(spec),
                                   .timeout = Seconds(timeout),
                                   .patience = Seconds(patience),
                                   .min_elements = min_elements,
                                   .warmup_steps = warmup_steps,
                                   .check_replicas_every = check_replicas_every,
                                   .guard = guard_of(guard),
                                   .guard_factor = guard_factor,
                                   .threads = threads,
                                   .seed = seed,
                                   .momentum_inside_ok = momentum_inside_ok,
                                   .caller_settings = std::move(caller_settings)};
           }),
           py::kw_only(), py::arg("spec") = "fp32", py::arg("timeout") = 60.0,
           py::arg("patience") = WaitLimits::kDefaultPatience.count(),
           py::arg("min_elements") = 1024, py::arg("warmup_steps") = 0,
           py::arg("check_replicas_every") = 100, py::arg("threads") = 1, py::arg("seed") = 0,
           py::arg("momentum_inside_ok") = false, py::arg("caller_settings") = "",
           py::arg("guard") = "off", py::arg("guard_factor") = 10.0)
      .def_readonly("momentum_inside_ok", &SessionOptions::momentum_inside_ok);

  py::class_<PythonSession>(module, "Session")
      .def(py::init(
          [](const std::shared_ptr<Connection>& connection, const SessionOptions& options) {
            const py::gil_scoped_release free;
            return std::make_unique<PythonSession>(*connection, options);
          }))
      .def_property_readonly("rank", [](PythonSession& self) { return self.open().rank(); })
      .def_property_readonly("world", [](PythonSession& self) { return self.open().size(); })
      .def(
          "add_bucket",
          [](PythonSession& self, const BucketLayout& layout) {
            const py::gil_scoped_release free;
            return self.open().add_bucket(layout);
          },
          py::arg("layout"))
      .def("submit", &submit, py::arg("bucket"), py::arg("address"), py::arg("second_moment") = 0)
      .def(
          "decline",
          [](PythonSession& self, const std::string& reason) {
            const py::gil_scoped_release free;
            self.open().decline(reason);
          },
          py::arg("reason"))
      .def("begin_step",
           [](PythonSession& self) {
             const py::gil_scoped_release free;
             self.open().begin_step();
           })
      .def("undo_step",
           [](PythonSession& self) {
             const py::gil_scoped_release free;
             self.open().undo_step();
           })
      .def(
          "commit_step",
          [](PythonSession& self, bool leave) {
            const py::gil_scoped_release free;
            return self.open().commit_step(leave);
          },
          py::arg("leave") = false)
      .def(
          "reconfigure",
          [](PythonSession& self, const std::shared_ptr<Connection>& connection) {
            Reconfiguration change;
            {
              const py::gil_scoped_release free;
              change = self.open().reconfigure(connection->take());
            }
            return to_dict(change);
          },
          py::arg("connection"))
      .def(
          "broadcast",
          [](PythonSession& self, int root, const std::string& message) {
            const auto own = view(message);
            std::vector<std::byte> bytes(own.begin(), own.end());
            {
              const py::gil_scoped_release free;
              self.open().broadcast(root, bytes);
            }
            return to_bytes(bytes);
          },
          py::arg("root"), py::arg("message"))
      .def(
          "forget",
          [](PythonSession& self, std::uint32_t id) {
            const py::gil_scoped_release free;
            self.open().forget(id);
          },
          py::arg("id"))
      .def("save",
           [](PythonSession& self) {
             std::vector<std::byte> bytes;
             {
               const py::gil_scoped_release free;
               bytes = self.open().save_bytes();
             }
             return to_bytes(bytes);
           })
      .def("load",
           [](PythonSession& self, const std::string& bytes) {
             const py::gil_scoped_release free;
             self.open().load_bytes(view(bytes));
           })
      .def("plan",
           [](PythonSession& self) -> py::object {
             const Plan plan = self.open().plan();
             if (!plan.active) return py::none();
             return dict_of(plan);
           })
      .def("abandon",
           [](PythonSession& self, const std::string& reason) {
             const py::gil_scoped_release free;
             self.open().abandon(reason);
           })
      .def("close", &PythonSession::close);

  module.def("redistribute", &redistribute_bytes, py::arg("states"), py::arg("world"));
}

}  // namespace thinreduce::python
