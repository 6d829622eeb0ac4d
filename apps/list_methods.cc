// `thinreduce methods`: lists the methods and their options from the table that parses the specs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/terminal.h"
#include "thinreduce/kernels/target.h"
#include "thinreduce/method/registry.h"

namespace thinreduce::apps {
namespace {

using Json = nlohmann::ordered_json;

std::string allowed(const OptionInfo& option) {
  if (option.kind == OptionInfo::Kind::choice) {
    return fmt::format("{}", fmt::join(option.choices, "|"));
  }
  if (option.kind == OptionInfo::Kind::names) {
    return fmt::format("some of {}, joined by +", fmt::join(option.choices, ", "));
  }
  std::string text = fmt::format("{} to {}", option.min, option.max);
  for (const auto& word : option.choices) text += "|" + word;
  return text;
}

Json to_json(const OptionInfo& option) {
  Json json{{"name", option.name},
            {"default", option.default_value},
            {"allowed", allowed(option)},
            {"help", option.help},
            {"paper_only", option.paper_only}};
  if (!option.old_name.empty()) json["formerly"] = option.old_name;
  for (const auto& [old_word, word] : option.old_values) json["formerly_values"][old_word] = word;
  return json;
}

Json to_json(const MethodInfo& info) {
  Json json{{"name", info.name},
            {"wire_id", info.wire_id},
            {"algebra", to_string(info.algebra)},
            {"summary", info.summary},
            {"paper", info.paper},
            {"second_moment", info.second_moment},
            {"composes_with", info.composes_with},
            {"options", Json::array()}};
  for (const OptionInfo& option : info.options) json["options"].push_back(to_json(option));
  json["presets"] = Json::array();
  for (const Preset& preset : info.presets) {
    json["presets"].push_back(
        {{"name", preset.name}, {"options", preset.options}, {"help", preset.help}});
  }
  return json;
}

// The old spellings that are still accepted, or "".
std::string formerly(const OptionInfo& option) {
  std::vector<std::string> old;
  if (!option.old_name.empty()) old.push_back(option.old_name);
  for (const auto& [old_word, word] : option.old_values) {
    old.push_back(fmt::format("{} = {}", old_word, word));
  }
  return old.empty() ? "" : fmt::format(" (old spelling: {})", fmt::join(old, ", "));
}

void print(const OptionInfo& option) {
  fmt::print("    {}={}  [{}]{}\n{}", option.name, option.default_value, allowed(option),
             formerly(option), wrapped(option.help, 8));
}

void print_auto() {
  fmt::print("{}\n{}", auto_info().name, wrapped(auto_info().summary, 2));
  for (const OptionInfo& option : auto_info().options) print(option);
  fmt::print("\n");
}

void print(const MethodInfo& info) {
  fmt::print("{} ({})\n{}", info.name, to_string(info.algebra), wrapped(info.summary, 2));
  fmt::print("{}", wrapped("Paper: " + info.paper, 2));
  if (!info.composes_with.empty()) {
    fmt::print("  Composes with {}, for example {}+{}.\n", fmt::join(info.composes_with, ", "),
               info.name, info.composes_with.front());
  }
  if (info.options.empty()) fmt::print("  It has no options.\n");
  for (const OptionInfo& option : info.options) {
    if (!option.paper_only) print(option);
  }
  const auto is_paper = [](const OptionInfo& option) { return option.paper_only; };
  if (std::any_of(info.options.begin(), info.options.end(), is_paper)) {
    fmt::print("  paper: options that only reproduce a setting of the paper\n");
  }
  for (const OptionInfo& option : info.options) {
    if (option.paper_only) print(option);
  }
  for (const Preset& preset : info.presets) {
    fmt::print("    preset={}  [{}]\n{}", preset.name, preset.options, wrapped(preset.help, 8));
  }
  fmt::print("\n");
}

}  // namespace

int list_methods(bool json) {
  if (json) {
    auto list = Json::array();
    for (const MethodInfo& info : methods()) list.push_back(to_json(info));
    fmt::print("{}\n", list.dump(2));
    return 0;
  }
  print_auto();
  for (const MethodInfo& info : methods()) print(info);
  fmt::print(
      "The word in brackets after a method's name says how payloads are combined. sum: added as "
      "floats.\n"
      "integer sum: added as integers. gather: every rank receives all payloads. staged: some\n"
      "ranks send first, and the others' payloads are decoded with their mean.\n"
      "Each option is listed as name=default  [allowed values].\n"
      "A spec is a method's name with options, for example topk:density=0.01,feedback=on\n"
      "A preset stands for the options in brackets after it; options beside it change single "
      "ones,\n"
      "for example topk:preset=paper,feedback=off\n"
      "In a spec of two methods the second quantizes what the first sends, for example "
      "gradiveq:basis=32+qsgd:bits=4\n"
      "The kernels run on {}; the environment variable THINREDUCE_SIMD chooses among {}.\n",
      kernels::active_target(), fmt::join(kernels::available_targets(), ", "));
  return 0;
}

}  // namespace thinreduce::apps
