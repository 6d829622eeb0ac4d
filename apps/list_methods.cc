// `thinreduce methods`: what there is, from the same table that parses the specs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "thinreduce/kernels/target.h"
#include "thinreduce/method/registry.h"

namespace thinreduce::apps {
namespace {

std::string allowed(const OptionInfo& option) {
  if (option.kind == OptionInfo::Kind::choice) {
    return fmt::format("{}", fmt::join(option.choices, "|"));
  }
  std::string text = fmt::format("{} to {}", option.min, option.max);
  for (const auto& word : option.choices) text += "|" + word;
  return text;
}

}  // namespace

int list_methods(bool json) {
  if (json) {
    auto list = nlohmann::ordered_json::array();
    for (const MethodInfo& info : methods()) {
      nlohmann::ordered_json method{{"name", info.name},
                                    {"wire_id", info.wire_id},
                                    {"algebra", to_string(info.algebra)},
                                    {"summary", info.summary},
                                    {"paper", info.paper},
                                    {"second_moment", info.second_moment},
                                    {"composes_with", info.composes_with},
                                    {"has_momentum", info.has_momentum},
                                    {"options", nlohmann::ordered_json::array()}};
      for (const OptionInfo& option : info.options) {
        method["options"].push_back({{"name", option.name},
                                     {"default", option.default_value},
                                     {"allowed", allowed(option)},
                                     {"help", option.help}});
      }
      list.push_back(std::move(method));
    }
    fmt::print("{}\n", list.dump(2));
    return 0;
  }
  for (const MethodInfo& info : methods()) {
    fmt::print("{}  ({}) {}\n    from: {}\n", info.name, to_string(info.algebra), info.summary,
               info.paper);
    if (!info.composes_with.empty()) {
      fmt::print("    composes with: {}, as in {}+{}\n", fmt::join(info.composes_with, ", "),
                 info.name, info.composes_with.front());
    }
    if (info.has_momentum) {
      fmt::print("    with momentum above 0 it brings its own: the optimizer's must then be 0\n");
    }
    for (const OptionInfo& option : info.options) {
      fmt::print("    {}={}  [{}] {}\n", option.name, option.default_value, allowed(option),
                 option.help);
    }
  }
  fmt::print(
      "\nA spec is a name and options: topk:density=0.01,feedback=on\n"
      "Of two that compose, the second quantizes what the first sends: "
      "gradiveq:basis=32+qsgd:bits=4\n"
      "Kernels run on {}; THINREDUCE_SIMD chooses among {}.\n",
      kernels::active_target(), fmt::join(kernels::available_targets(), ", "));
  return 0;
}

}  // namespace thinreduce::apps
