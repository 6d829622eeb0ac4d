// Binds CountSketch. Python passes numpy arrays as address and length.
#include "thinreduce/methods/sketch/count_sketch.h"

#include <pybind11/stl.h>

#include <string>

#include "python/module/bindings.h"
#include "python/module/floats_at.h"

namespace thinreduce::python {

namespace py = pybind11;

void bind_count_sketch(py::module_& module) {
  py::class_<CountSketch>(module, "CountSketch")
      .def(py::init([](std::size_t rows, std::size_t columns, std::uint64_t seed) {
             return CountSketch({.rows = rows, .columns = columns, .seed = seed});
           }),
           py::kw_only(), py::arg("rows"), py::arg("columns"), py::arg("seed"))
      .def_property_readonly("rows", &CountSketch::rows)
      .def_property_readonly("columns", &CountSketch::columns)
      .def_property_readonly("seed", &CountSketch::seed)
      .def("cells",
           [](const CountSketch& self) {
             const auto bytes = std::as_bytes(self.cells());
             return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
           })
      .def("accumulate",
           [](CountSketch& self, std::uintptr_t address, std::size_t count, std::uint64_t first) {
             self.accumulate(floats_at(address, count), first);
           })
      .def("merge", &CountSketch::merge)
      .def("estimate", [](const CountSketch& self, std::uint64_t first, std::uintptr_t address,
                          std::size_t count) { self.estimate(first, floats_at(address, count)); })
      .def("heavy_hitters",
           [](const CountSketch& self, std::size_t elements, float least) {
             std::vector<std::pair<std::size_t, float>> result;
             for (const auto& hitter : self.heavy_hitters(elements, least)) {
               result.emplace_back(hitter.index, hitter.estimate);
             }
             return result;
           })
      .def("norm", &CountSketch::norm)
      .def("save",
           [](const CountSketch& self) {
             const auto bytes = self.save();
             return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
           })
      .def_static("load", [](const std::string& bytes) {
        return CountSketch::load(std::as_bytes(std::span(bytes)));
      });
}

}  // namespace thinreduce::python
