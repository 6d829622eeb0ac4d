#include "thinreduce/method/spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "thinreduce/error.h"
#include "thinreduce/method/registry.h"

namespace thinreduce {
namespace {

// Stands for the options of a preset; not an option itself, so that full texts do not have it.
constexpr std::string_view kPreset = "preset";

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::bad_spec, why);
}

const MethodInfo& find_method(std::string_view name) {
  std::vector<std::string> names;
  for (const MethodInfo& info : methods()) {
    if (info.name == name) return info;
    names.push_back(info.name);
  }
  if (name == auto_info().name) return auto_info();
  names.push_back(auto_info().name);
  if (name.empty()) {
    refuse(fmt::format("a spec must begin with the name of a method: {}", fmt::join(names, ", ")));
  }
  if (name.ends_with('+')) {
    refuse(fmt::format("'{}': the name of a second method must follow the plus", name));
  }
  if (const auto comma = name.find(','); comma != std::string_view::npos) {
    const bool is_option = name.find('=') != std::string_view::npos;
    refuse(is_option ? fmt::format("'{}': write options after a colon: {}:{}", name,
                                   name.substr(0, comma), name.substr(comma + 1))
                     : fmt::format("'{}' must be one method; for several, give --method once per "
                                   "method",
                                   name));
  }
  refuse(fmt::format("there is no method '{}'; the methods are: {}", name, fmt::join(names, ", ")));
}

const OptionInfo& find_option(const MethodInfo& info, std::string_view name) {
  std::vector<std::string> names;
  for (const OptionInfo& option : info.options) {
    if (option.name == name || (!option.old_name.empty() && option.old_name == name)) return option;
    names.push_back(option.name);
  }
  if (names.empty()) refuse(fmt::format("{} has no options; leave out '{}'", info.name, name));
  if (!info.presets.empty()) names.emplace_back(kPreset);
  refuse(fmt::format("{} has no option '{}'; its options are: {}", info.name, name,
                     fmt::join(names, ", ")));
}

// Returns names joined by a plus in the order in which the option lists them.
std::string checked_names(const MethodInfo& info, const OptionInfo& option,
                          const std::string& text) {
  const auto given = split_names(text);
  std::string joined;
  for (const auto& name : option.choices) {
    if (std::find(given.begin(), given.end(), name) != given.end()) {
      joined += (joined.empty() ? "" : "+") + name;
    }
  }
  if (split_names(joined).size() != given.size() || joined.empty()) {
    refuse(
        fmt::format("{}: {} must be one or more of {}, joined by +, without repeats (fp32 is "
                    "always included); got '{}'",
                    info.name, option.name, fmt::join(option.choices, ", "), text));
  }
  return joined;
}

// Returns the value in its canonical spelling, so that equal specs have equal text.
std::string checked_value(const MethodInfo& info, const OptionInfo& option,
                          const std::string& text) {
  if (option.kind == OptionInfo::Kind::names) return checked_names(info, option, text);
  if (std::find(option.choices.begin(), option.choices.end(), text) != option.choices.end()) {
    return text;
  }
  for (const auto& [old_word, word] : option.old_values) {
    if (old_word == text) return word;
  }
  if (option.kind == OptionInfo::Kind::choice) {
    refuse(fmt::format("{}: {} must be one of: {}; got '{}'", info.name, option.name,
                       fmt::join(option.choices, ", "), text));
  }
  double value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  const bool whole = option.kind == OptionInfo::Kind::integer;
  if (parsed.ec != std::errc{} || parsed.ptr != end || !std::isfinite(value) ||
      (whole && value != std::floor(value)) || value < option.min || value > option.max) {
    std::string words;
    for (const auto& word : option.choices) words += fmt::format(" or {}", word);
    refuse(fmt::format("{}: {} must be {} from {} to {}{}; got '{}'", info.name, option.name,
                       whole ? "a whole number" : "a number", option.min, option.max, words, text));
  }
  return whole ? fmt::format("{}", static_cast<long long>(value)) : fmt::format("{}", value);
}

// Returns the position of the plus before a second method's name. An exponent may have a plus, too.
std::size_t find_plus(std::string_view text) {
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '+' && text[i + 1] >= 'a' && text[i + 1] <= 'z') return i;
  }
  return std::string_view::npos;
}

struct GivenOption {
  std::string_view name;
  std::string value;
};

// Splits the text `option=value,option=value` of a spec.
std::vector<GivenOption> split_options(std::string_view spec, std::string_view text) {
  std::vector<GivenOption> given;
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    const auto item = text.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) text = text.substr(comma + 1);
    const auto equals = item.find('=');
    if (item.empty()) {
      refuse(fmt::format("spec '{}' has a ':' or ',' without an option=value after it", spec));
    }
    if (equals == std::string_view::npos) {
      const bool in_list = !given.empty() && given.back().name == "methods";
      refuse(fmt::format("spec '{}': '{}' must have the form option=value{}", spec, item,
                         in_list ? fmt::format("; join methods with a plus: methods={}+{}",
                                               given.back().value, item)
                                 : ""));
    }
    given.push_back({item.substr(0, equals), std::string(item.substr(equals + 1))});
  }
  return given;
}

void set_option(const MethodInfo& info, const GivenOption& given, Options& options) {
  const OptionInfo& option = find_option(info, given.name);
  options.values[option.name] = checked_value(info, option, given.value);
}

void set_preset(const MethodInfo& info, const std::string& name, Options& options) {
  std::vector<std::string> names;
  for (const Preset& preset : info.presets) {
    names.push_back(preset.name);
    if (preset.name != name) continue;
    for (const auto& given : split_options(info.name, preset.options)) {
      set_option(info, given, options);
    }
    return;
  }
  if (names.empty()) refuse(fmt::format("{} has no presets; leave out 'preset'", info.name));
  refuse(fmt::format("{} has no preset '{}'; its presets are: {}", info.name, name,
                     fmt::join(names, ", ")));
}

// Parses the options of `method:option=value,option=value`. A preset comes first, wherever it
// stands, so that the other options change it.
Options parse_options(const MethodInfo& info, std::string_view text) {
  Options options;
  for (const OptionInfo& option : info.options) {
    options.values[option.name] = option.default_value;
  }
  const auto colon = text.find(':');
  if (colon == std::string_view::npos) return options;

  const auto given = split_options(text, text.substr(colon + 1));
  std::vector<std::string> seen;
  for (const GivenOption& one : given) {
    const bool is_preset = one.name == kPreset;
    seen.push_back(is_preset ? std::string(kPreset) : find_option(info, one.name).name);
    if (std::count(seen.begin(), seen.end(), seen.back()) > 1) {
      refuse(fmt::format("spec '{}' gives {} twice; give it once", text, seen.back()));
    }
    if (is_preset) set_preset(info, one.value, options);
  }
  for (const GivenOption& one : given) {
    if (one.name != kPreset) set_option(info, one, options);
  }
  return options;
}

std::string all_options(const Options& options) {
  std::string text;
  for (const auto& [name, value] : options.values) {
    text += fmt::format("{}{}={}", text.empty() ? ':' : ',', name, value);
  }
  return text;
}

std::string changed_options(const MethodInfo& info, const Options& options) {
  std::string text;
  for (const OptionInfo& option : info.options) {
    const std::string& value = options.text(option.name);
    if (value == option.default_value) continue;
    text += fmt::format("{}{}={}", text.empty() ? ':' : ',', option.name, value);
  }
  return text;
}

}  // namespace

Spec Spec::parse(std::string_view text) {
  Spec spec;
  // The options of auto may have names with a plus between them.
  const bool is_auto = text.substr(0, text.find(':')) == auto_info().name;
  const auto plus = is_auto ? std::string_view::npos : find_plus(text);
  const auto outer = text.substr(0, plus);
  spec.info = &find_method(outer.substr(0, outer.find(':')));
  spec.options = parse_options(*spec.info, outer);
  spec.info->check(spec.options);
  if (plus == std::string_view::npos) return spec;

  const auto rest = text.substr(plus + 1);
  const MethodInfo& inner = find_method(rest.substr(0, rest.find_first_of(":+")));
  const auto& possible = spec.info->composes_with;
  if (possible.empty()) {
    std::vector<std::string> names;
    for (const MethodInfo& info : methods()) {
      if (!info.composes_with.empty()) names.push_back(info.name);
    }
    refuse(fmt::format("spec '{}': {} composes with no other method; only these do: {}", text,
                       spec.info->name, fmt::join(names, ", ")));
  }
  if (std::find(possible.begin(), possible.end(), inner.name) == possible.end() ||
      find_plus(rest) != std::string_view::npos) {
    refuse(fmt::format("spec '{}': {}+ must be followed by exactly one of: {}", text,
                       spec.info->name, fmt::join(possible, ", ")));
  }
  spec.inner = InnerMethod{inner.name, parse_options(inner, rest)};
  inner.check(spec.inner->options);
  spec.info->check_composed(spec.options, *spec.inner);
  return spec;
}

std::string Spec::name() const {
  return inner ? info->name + "+" + inner->name : info->name;
}

bool Spec::is_auto() const {
  return info == &auto_info();
}

std::string Spec::short_text() const {
  std::string text = info->name + changed_options(*info, options);
  if (inner) text += "+" + inner->name + changed_options(find_method(inner->name), inner->options);
  return text;
}

std::string Spec::full_text() const {
  std::string text = info->name + all_options(options);
  if (inner) text += "+" + inner->name + all_options(inner->options);
  return text;
}

std::unique_ptr<Method> Spec::make(const MethodSetup& setup) const {
  return inner ? info->make_composed(options, *inner, setup) : info->make(options, setup);
}

}  // namespace thinreduce
