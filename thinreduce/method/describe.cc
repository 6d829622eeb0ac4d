#include "thinreduce/method/describe.h"

#include <optional>

#include "thinreduce/method/registry.h"
#include "thinreduce/method/spec.h"

namespace thinreduce {

std::vector<MethodDescription> describe_methods() {
  std::vector<MethodDescription> result;
  for (const MethodInfo& info : methods()) {
    MethodDescription& method = result.emplace_back();
    method.name = info.name;
    method.algebra = to_string(info.algebra);
    method.summary = info.summary;
    method.paper = info.paper;
    method.second_moment = info.second_moment;
    method.composes_with = info.composes_with;
    for (const OptionInfo& option : info.options) {
      method.options.push_back({.name = option.name,
                                .default_value = option.default_value,
                                .min = option.min,
                                .max = option.max,
                                .choices = option.choices,
                                .help = option.help});
    }
    for (const Preset& preset : info.presets) {
      method.presets.push_back({preset.name, preset.options, preset.help});
    }
  }
  return result;
}

SpecDescription describe_spec(std::string_view spec) {
  const Spec parsed = Spec::parse(spec);
  const std::optional<Update> update = parsed.update();
  return {.name = parsed.name(),
          .short_text = parsed.short_text(),
          .full_text = parsed.full_text(),
          .second_moment = parsed.info->second_moment,
          .momentum_inside = update.has_value(),
          .without_momentum = update ? update->without : "",
          .hands_out_signs = update && update->signs};
}

}  // namespace thinreduce
