// The Python module: the engine as Python sees it. It knows neither torch nor numpy's C API: arrays
// and tensors come as an address and a length.
#include "python/module/bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ engine of thinreduce; use the package `thinreduce` instead.";
  thinreduce::python::bind_errors(module);
  thinreduce::python::bind_methods(module);
  thinreduce::python::bind_transports(module);
  thinreduce::python::bind_session(module);
  thinreduce::python::bind_count_sketch(module);
  thinreduce::python::bind_codec(module);
}
