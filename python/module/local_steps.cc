// LocalSteps of the engine. Python gathers parameters in a buffer and passes its address.
#include "thinreduce/engine/local_steps.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "python/module/bindings.h"
#include "python/module/floats_at.h"
#include "python/module/python_session.h"

namespace thinreduce::python {

namespace py = pybind11;

namespace {

using NamedShape = std::tuple<std::string, std::vector<std::int64_t>>;

std::vector<Tensor> make_tensors(const std::vector<NamedShape>& given) {
  std::vector<Tensor> tensors;
  for (const auto& [name, shape] : given) tensors.push_back({name, shape});
  return tensors;
}

// Nothing here waits with the GIL held: a thread of the engine may need it.
class PythonLocalSteps {
 public:
  PythonLocalSteps(PythonSession& session, const LocalStepsOptions& options,
                   const std::vector<NamedShape>& tensors)
      : session_(session),
        steps_(std::make_unique<LocalSteps>(session.open(), options, make_tensors(tensors))) {}
  ~PythonLocalSteps() {
    const py::gil_scoped_release free;
    steps_.reset();
  }
  PythonLocalSteps(const PythonLocalSteps&) = delete;
  PythonLocalSteps& operator=(const PythonLocalSteps&) = delete;

  // Throws when the session is closed.
  LocalSteps& open() {
    static_cast<void>(session_.open());
    return *steps_;
  }
  std::span<float> parameters(std::size_t fragment, std::uintptr_t address) {
    return floats_at(address, steps_->layout(fragment).elements);
  }

  void read_anchor(std::size_t fragment, std::uintptr_t address) {
    std::ranges::copy(open().anchor(fragment), parameters(fragment, address).begin());
  }
  Report apply(std::size_t fragment, std::uintptr_t address) {
    return open().apply(fragment, parameters(fragment, address));
  }

 private:
  PythonSession& session_;
  std::unique_ptr<LocalSteps> steps_;
};

LocalStepsOptions make_options(std::uint64_t every, std::string outer, std::size_t fragments,
                               std::uint64_t overlap, std::uint32_t first_id, std::string spec,
                               std::string kind) {
  return {.every = every,
          .outer = std::move(outer),
          .fragments = fragments,
          .overlap = overlap,
          .first_id = first_id,
          .spec = std::move(spec),
          .kind = std::move(kind)};
}

}  // namespace

void bind_local_steps(py::module_& module) {
  using release = py::call_guard<py::gil_scoped_release>;
  py::class_<LocalStepsOptions>(module, "LocalStepsOptions")
      .def(py::init(&make_options), py::kw_only(), py::arg("every"), py::arg("outer"),
           py::arg("fragments") = 1, py::arg("overlap") = 0, py::arg("first_id") = 0,
           py::arg("spec") = "", py::arg("kind") = "parameter")
      .def("settings", &LocalStepsOptions::settings)
      .def("momentum", &LocalStepsOptions::momentum);

  using Self = PythonLocalSteps;
  py::class_<Self>(module, "LocalSteps")
      .def(py::init<PythonSession&, const LocalStepsOptions&, const std::vector<NamedShape>&>(),
           py::keep_alive<1, 2>(), py::arg("session"), py::arg("options"), py::arg("tensors"))
      .def_property_readonly("fragments", [](Self& self) { return self.open().fragments(); })
      .def_property_readonly("step", [](Self& self) { return self.open().step(); })
      .def("members",
           [](Self& self, std::size_t fragment) { return self.open().members(fragment); })
      .def("under_way",
           [](Self& self, std::size_t fragment) { return self.open().under_way(fragment); })
      .def("has_steps",
           [](Self& self, std::size_t fragment) { return self.open().has_steps(fragment); })
      .def("set_anchor",
           [](Self& self, std::size_t fragment, std::uintptr_t address) {
             self.open().set_anchor(fragment, self.parameters(fragment, address));
           })
      .def("read_anchor", &Self::read_anchor)
      .def("advance",
           [](Self& self) {
             const LocalStepsDue due = self.open().advance();
             return py::make_tuple(due.start, due.apply);
           })
      .def(
          "start",
          [](Self& self, std::size_t fragment, std::uintptr_t address) {
            self.open().start(fragment, self.parameters(fragment, address));
          },
          release())
      .def(
          "wait",
          [](Self& self, std::size_t fragment, double seconds) {
            return self.open().wait(fragment, Seconds(seconds));
          },
          release())
      .def("apply",
           [](Self& self, std::size_t fragment, std::uintptr_t address) {
             Report report;
             {
               const py::gil_scoped_release free;
               report = self.apply(fragment, address);
             }
             return to_dict(report);
           })
      .def("save",
           [](Self& self) {
             std::vector<std::byte> bytes;
             {
               const py::gil_scoped_release free;
               bytes = self.open().save_bytes();
             }
             return to_bytes(bytes);
           })
      .def("load", [](Self& self, const std::string& bytes) {
        const py::gil_scoped_release free;
        self.open().load_bytes(view(bytes));
      });
}

}  // namespace thinreduce::python
