// The specs that every law is tried with, made from methods(): a method is under all laws on the
// day it is registered.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "tests/sanitized.h"
#include "thinreduce/error.h"
#include "thinreduce/method/registry.h"
#include "thinreduce/method/spec.h"

namespace thinreduce {

// Returns whether `spec` parses: some values need another option beside them.
inline bool is_spec(const std::string& spec) {
  try {
    (void)Spec::parse(spec);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Returns every method at its default and every composition of two.
inline std::vector<std::string> default_specs() {
  std::vector<std::string> specs;
  for (const MethodInfo& info : methods()) {
    specs.push_back(info.name);
    for (const std::string& inner : info.composes_with) specs.push_back(info.name + "+" + inner);
  }
  return specs;
}

// Returns default_specs(), and each method once with every word that one of its options may have
// instead of its default; with a sanitizer, only where the word names other code for its messages.
inline std::vector<std::string> law_specs() {
  std::vector<std::string> specs = default_specs();
  specs.emplace_back("sketch:min_values=4096");  // sketches the tests' buckets, which are small
  specs.emplace_back("gradiveq:sampling=phases,feedback=off");  // a word that needs another option
  for (const MethodInfo& info : methods()) {
    for (const OptionInfo& option : info.options) {
      if (kSanitized && option.name != "collective") continue;
      for (const std::string& word : option.choices) {
        const std::string spec = info.name + ":" + option.name + "=" + word;
        if (word != option.default_value && is_spec(spec)) specs.push_back(spec);
      }
    }
  }
  return specs;
}

inline Losses losses_of(const std::string& spec) {
  const Spec parsed = Spec::parse(spec);
  return parsed.info->losses(parsed.options);
}

// Returns whether the means of all steps and the residuals must add up to the gradients, apart from
// decay, if there are residuals: an update is not a mean.
inline bool balances(const std::string& spec) {
  return !losses_of(spec).discards && !Spec::parse(spec).update();
}

// Returns the number of steps after which a method compresses, and `more`.
inline unsigned steps_of(const std::string& spec, unsigned more) {
  const Spec parsed = Spec::parse(spec);
  return static_cast<unsigned>(parsed.info->cycle(parsed.options).start) + more;
}

// Returns the spec as the name of a test.
inline std::string test_name(std::string spec) {
  std::ranges::replace_if(
      spec, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return spec;
}

}  // namespace thinreduce
