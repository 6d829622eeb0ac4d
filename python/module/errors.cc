// Translates thinreduce::Error to the Python exception with the same code and text.
#include "thinreduce/error.h"

#include "python/module/bindings.h"

namespace thinreduce::python {

namespace py = pybind11;

namespace {

void raise(ErrorCode code, const char* text, bool nonfinite = false) {
  const auto from_code = py::module_::import("thinreduce.errors").attr("from_code");
  const py::object exception = from_code(std::string(to_string(code)), text, nonfinite);
  PyErr_SetObject(py::type::handle_of(exception).ptr(), exception.ptr());
}

}  // namespace

void bind_errors(py::module_& /*module*/) {
  // pybind11 passes the pointer by value. NOLINTNEXTLINE(performance-unnecessary-value-param)
  py::register_exception_translator([](std::exception_ptr thrown) {
    if (!thrown) return;
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      raise(error.code(), error.what(), error.is_nonfinite());
    } catch (const BrokenInvariant& error) {
      raise(ErrorCode::internal, error.what());
    }
  });
}

}  // namespace thinreduce::python
