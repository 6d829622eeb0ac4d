// The specs whose messages and states are fuzzed, and a small bucket for them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "tests/law_specs.h"
#include "thinreduce/method/layout.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce::fuzz {

// Returns every method and composition, and every word that an option may have.
inline const std::vector<std::string>& fuzzed_specs() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> specs = default_specs();
    for (const MethodInfo& info : methods()) {
      for (const OptionInfo& option : info.options) {
        for (const std::string& word : option.choices) {
          const std::string spec = info.name + ":" + option.name + "=" + word;
          // Longer blocks are the same code, and slow.
          if (std::strtoul(word.c_str(), nullptr, 10) > 1024) continue;
          if (word != option.default_value && is_spec(spec)) specs.push_back(spec);
        }
      }
    }
    // Numbers that take another way through the code, in buckets that are small.
    for (const char* spec :
         {"gradiveq:warmup=1", "gradiveq:warmup=0,slice=16,ratio=4", "sketch:min_values=64",
          "sketch:min_values=64,momentum=0.9", "topk:density=0.1", "topk:density=0.5",
          "variance:tau=0.1,index=28bit", "dqsg:feedback=on,collective=owner", "dqsg:levels=3",
          "powersgd:basis=2", "qsgd:bits=3", "gradiveq:sampling=phases,feedback=off",
          "gradiveq:sampling=phases,feedback=off,warmup=1,collect=1,interval=2"}) {
      static_cast<void>(Spec::parse(spec));
      specs.emplace_back(spec);
    }
    return specs;
  }();
  return all;
}

// A number for a spec in an input, which stays the same when methods are added.
inline std::uint16_t key_of(const std::string& spec) {
  return static_cast<std::uint16_t>(checksum(spec));
}
inline const std::string& spec_of(std::uint16_t key) {
  const auto& all = fuzzed_specs();
  static const std::vector<std::uint16_t> keys = [&] {
    std::vector<std::uint16_t> made;
    for (const std::string& spec : all) made.push_back(key_of(spec));
    return made;
  }();
  const auto found = std::ranges::find(keys, key);
  return all[found == keys.end() ? key % all.size()
                                 : static_cast<std::size_t>(found - keys.begin())];
}

// Returns a bucket of one of a few sizes and shapes.
inline BucketLayout layout_of(unsigned choice) {
  static constexpr std::size_t kSizes[] = {1, 7, 64, 300, 601};
  BucketLayout layout;
  if (choice % 8 < std::size(kSizes)) {
    layout.elements = kSizes[choice % 8];
    return layout;
  }
  layout.add("conv.weight", {8, 4, 3, 3});
  if (choice % 8 == 5) layout.add("fc.weight", {9, 31});
  if (choice % 8 == 6) layout.add("wide.weight", {2, 150});
  return layout;
}

inline std::vector<float> gradient_of(std::size_t elements, unsigned seed) {
  std::vector<float> values(elements);
  std::uint32_t state = seed * 2654435761U + 1;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<std::int32_t>(state)) / 2147483648.0F;
  }
  return values;
}
inline std::vector<float> moment_of(std::size_t elements, unsigned seed) {
  auto values = gradient_of(elements, seed + 77);
  for (float& value : values) value = value * value + 0.01F;
  return values;
}

}  // namespace thinreduce::fuzz
