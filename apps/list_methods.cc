// `thinreduce methods`: lists the methods and their options from the table that parses the specs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/terminal.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/target.h"
#include "thinreduce/method/registry.h"
#include "thinreduce/method/spec.h"

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
  if (!option.old_name.empty()) old.push_back("old name: " + option.old_name);
  for (const auto& [old_word, word] : option.old_values) {
    old.push_back(fmt::format("old value: {} for {}", old_word, word));
  }
  return old.empty() ? "" : fmt::format(" ({})", fmt::join(old, "; "));
}

// Returns how the ranks' payloads are combined.
const char* combination(const MethodInfo& info) {
  const bool has_choice = std::ranges::any_of(
      info.options, [](const OptionInfo& option) { return option.name == "collective"; });
  switch (info.algebra) {
    case Algebra::sum:
      return "Payloads are added as floats.";
    case Algebra::integer_sum:
      return "With few ranks (see the option collective), payloads are added as integers.";
    case Algebra::gather:
      return has_choice ? "With few ranks (see the option collective), every rank receives all "
                          "payloads."
                        : "Every rank receives all payloads.";
    case Algebra::staged:
      return "With few ranks (see the option collective), some ranks send first; their mean helps "
             "to decode the payloads of the others.";
  }
  return "";
}

// Prints both on one line, or the details on lines of their own if that would be too long.
void print_entry(const std::string& name, const std::string& details, const std::string& help) {
  const std::string line = fmt::format("    {}  {}\n", name, details);
  if (line.size() <= kColumns + 1) {
    fmt::print("{}", line);
  } else {
    fmt::print("    {}\n{}", name, wrapped(details, 8));
  }
  fmt::print("{}", wrapped(help, 8));
}

void print(const OptionInfo& option) {
  print_entry(fmt::format("{}={}", option.name, option.default_value),
              fmt::format("[{}]{}", allowed(option), formerly(option)), option.help);
}

void print(const MethodInfo& info) {
  fmt::print("{}\n{}", info.name, wrapped(info.summary, 2));
  if (&info != &auto_info()) {
    fmt::print("{}{}", wrapped(combination(info), 2), wrapped("Paper: " + info.paper, 2));
  }
  if (!info.composes_with.empty()) {
    fmt::print("{}", wrapped(fmt::format("Composes with {}, for example {}+{}.",
                                         fmt::join(info.composes_with, ", "), info.name,
                                         info.composes_with.front()),
                             2));
  }
  if (info.options.empty()) fmt::print("  It has no options.\n");
  for (const OptionInfo& option : info.options) {
    if (!option.paper_only) print(option);
  }
  const auto is_paper = [](const OptionInfo& option) { return option.paper_only; };
  if (std::any_of(info.options.begin(), info.options.end(), is_paper)) {
    fmt::print("  Options for reproducing the paper:\n");
  }
  for (const OptionInfo& option : info.options) {
    if (option.paper_only) print(option);
  }
  for (const Preset& preset : info.presets) {
    print_entry("preset=" + preset.name, fmt::format("(stands for {})", preset.options),
                preset.help);
  }
  fmt::print("\n");
}

void print_introduction(const std::string& target) {
  for (const std::string& paragraph :
       {std::string("A spec is a method's name with options, for example "
                    "topk:density=0.01,feedback=on"),
        std::string("Each option is listed as name=default [allowed values]."),
        std::string("A preset stands for several options; the other options override single "
                    "values, for example topk:preset=paper,feedback=off"),
        std::string("In a spec of two methods the second quantizes the values that the first "
                    "sends, for example gradiveq:ratio=4+qsgd:bits=4"),
        std::string("With more than 3 or 4 ranks (the option collective says which), most methods "
                    "reduce at owners by default: each rank owns a range of the elements, adds up "
                    "the values that all ranks send for that range, and sends the result to "
                    "all."),
        fmt::format("The kernels use the instruction set {} (AVX3 is AVX-512); the environment "
                    "variable THINREDUCE_SIMD chooses among "
                    "{}.",
                    target, fmt::join(kernels::available_targets(), ", "))}) {
    fmt::print("{}", wrapped(paragraph, 0));
  }
  fmt::print("\n");
}

}  // namespace

int list_methods(const std::string& name, bool json) {
  // Throws for a wrong THINREDUCE_SIMD before anything is printed.
  const std::string target = kernels::active_target();
  std::vector<const MethodInfo*> shown;
  if (name.empty() || name == auto_info().name) shown.push_back(&auto_info());
  for (const MethodInfo& info : methods()) {
    if (name.empty() || name == info.name) shown.push_back(&info);
  }
  if (shown.empty()) {
    const Spec spec = Spec::parse(name);  // throws an error that lists the methods
    throw Error(ErrorCode::bad_spec,
                fmt::format("`thinreduce methods` takes the name of a method without options, not "
                            "'{}'; run `thinreduce methods {}`",
                            name, spec.info->name));
  }
  if (json) {
    auto list = Json::array();
    for (const MethodInfo* info : shown) list.push_back(to_json(*info));
    fmt::print("{}\n", list.dump(2));
    return 0;
  }
  if (name.empty()) {
    print_introduction(target);
  }
  for (const MethodInfo* info : shown) print(*info);
  return 0;
}

}  // namespace thinreduce::apps
