// Translates thinreduce::Error to the Python exception with the same code and text.
#include "thinreduce/error.h"

#include "python/module/bindings.h"

namespace thinreduce::python {

namespace py = pybind11;

void bind_errors(py::module_& /*module*/) {
  // pybind11 passes the pointer by value. NOLINTNEXTLINE(performance-unnecessary-value-param)
  py::register_exception_translator([](std::exception_ptr thrown) {
    if (!thrown) return;
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      const auto from_code = py::module_::import("thinreduce.errors").attr("from_code");
      const py::object exception = from_code(std::string(to_string(error.code())), error.what());
      PyErr_SetObject(py::type::handle_of(exception).ptr(), exception.ptr());
    }
  });
}

}  // namespace thinreduce::python
