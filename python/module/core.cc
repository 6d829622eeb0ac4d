// The Python module of the engine. It uses neither torch's nor numpy's C API: Python passes arrays
// and tensors as address and length.
#include "python/module/bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ engine of thinreduce; use the package `thinreduce` instead.";
  thinreduce::python::bind_errors(module);
  thinreduce::python::bind_methods(module);
  thinreduce::python::bind_transports(module);
  thinreduce::python::bind_session(module);
  thinreduce::python::bind_local_steps(module);
  thinreduce::python::bind_count_sketch(module);
  thinreduce::python::bind_codec(module);
}
