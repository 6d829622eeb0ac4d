// The parts of the Python module `thinreduce._core`, one function per part.
#pragma once

#include <pybind11/pybind11.h>

namespace thinreduce::python {

void bind_errors(pybind11::module_& module);
void bind_methods(pybind11::module_& module);
void bind_transports(pybind11::module_& module);
void bind_session(pybind11::module_& module);
void bind_local_steps(pybind11::module_& module);
void bind_count_sketch(pybind11::module_& module);
void bind_codec(pybind11::module_& module);

}  // namespace thinreduce::python
