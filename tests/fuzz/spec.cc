// Specs: each is refused or has a full text that stands for the same spec.
#include "thinreduce/method/spec.h"

#include "tests/fuzz/fuzz.h"
#include "thinreduce/method/registry.h"

namespace thinreduce::fuzz {
void run(Input input) {
  const std::string text(input.text());
  std::string full;
  std::string shortened;
  const bool good = accepts([&] {
    const Spec spec = Spec::parse(text);
    full = spec.full_text();
    shortened = spec.short_text();
    static_cast<void>(spec.update());
    static_cast<void>(spec.info->losses(spec.options));
    static_cast<void>(spec.info->cycle(spec.options));
  });
  if (!good) return;
  expect(Spec::parse(full).full_text() == full, "the full text stands for the spec");
  expect(Spec::parse(shortened).full_text() == full, "the short text stands for the spec");
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all{text_seed(""), text_seed("auto"), text_seed("a+b:c=d")};
  const auto add = [&](const std::string& text) {
    try {
      all.push_back(text_seed(Spec::parse(text).full_text()));
    } catch (const Error&) {
      // Needs another option beside it.
    }
    all.push_back(text_seed(text));
  };
  for (const MethodInfo& info : methods()) {
    add(info.name);
    for (const std::string& inner : info.composes_with) add(info.name + "+" + inner);
    for (const Preset& preset : info.presets) add(info.name + ":preset=" + preset.name);
    for (const OptionInfo& option : info.options) {
      add(info.name + ":" + option.name + "=" + option.default_value);
      for (const auto& word : option.choices) add(info.name + ":" + option.name + "=" + word);
      if (!option.old_name.empty()) add(info.name + ":" + option.old_name + "=1");
    }
  }
  for (const OptionInfo& option : auto_info().options) {
    add("auto:" + option.name + "=" + option.default_value);
  }
  return all;
}

}  // namespace thinreduce::fuzz
