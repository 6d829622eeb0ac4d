// Binds the list of methods and the parser of specs.
#include <pybind11/stl.h>

#include <string>

#include "python/module/bindings.h"
#include "thinreduce/method/describe.h"
#include "thinreduce/simd.h"
#include "thinreduce/version.h"

namespace thinreduce::python {

namespace py = pybind11;

namespace {

py::dict describe(const MethodDescription& info) {
  py::list options;
  for (const OptionDescription& option : info.options) {
    py::dict one;
    one["name"] = option.name;
    one["default"] = option.default_value;
    one["min"] = option.min;
    one["max"] = option.max;
    one["choices"] = option.choices;
    one["help"] = option.help;
    options.append(one);
  }
  py::dict result;
  result["name"] = info.name;
  result["algebra"] = info.algebra;
  result["summary"] = info.summary;
  result["paper"] = info.paper;
  result["second_moment"] = info.second_moment;
  result["composes_with"] = info.composes_with;
  result["options"] = options;
  py::list presets;
  for (const PresetDescription& preset : info.presets) {
    py::dict one;
    one["name"] = preset.name;
    one["options"] = preset.options;
    one["help"] = preset.help;
    presets.append(one);
  }
  result["presets"] = presets;
  return result;
}

}  // namespace

void bind_methods(py::module_& module) {
  module.def("methods", [] {
    py::list result;
    for (const MethodDescription& info : describe_methods()) result.append(describe(info));
    return result;
  });
  module.def("spec_text", [](const std::string& spec) { return describe_spec(spec).full_text; });
  module.def("momentum_inside",
             [](const std::string& spec) { return describe_spec(spec).momentum_inside; });
  module.def("without_momentum",
             [](const std::string& spec) { return describe_spec(spec).without_momentum; });
  module.def("hands_out_signs",
             [](const std::string& spec) { return describe_spec(spec).hands_out_signs; });
  module.def("simd_target", &simd_target);
  module.def("version", &version);
}

}  // namespace thinreduce::python
