// The methods of this build and their options, and the meaning of a spec.
//
// A spec chooses a method and its options as text: `topk:density=0.01,feedback=on`. In `a+b`,
// method b quantizes the values that method a sends.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "thinreduce/export.h"

namespace thinreduce {

struct OptionDescription {
  std::string name;
  std::string default_value;
  double min = 0;  // of a number; both are 0 for an option that is a word
  double max = 0;
  // All values of an option that is a word; for a number, the words that are accepted as well.
  std::vector<std::string> choices;
  std::string help;
};

// `preset=name` in a spec stands for the options; the other options override single values.
struct PresetDescription {
  std::string name;
  std::string options;  // "density=0.01,feedback=off"
  std::string help;
};

struct MethodDescription {
  std::string name;
  std::string algebra;  // how payloads combine: "sum", "integer sum", "gather" or "staged"
  std::string summary;
  std::string paper;
  bool second_moment = false;              // whether it uses the second moment of a gradient
  std::vector<std::string> composes_with;  // methods that may follow after a plus
  std::vector<OptionDescription> options;
  std::vector<PresetDescription> presets;
};

// Returns all methods, simple ones first.
[[nodiscard]] THINREDUCE_EXPORT std::vector<MethodDescription> describe_methods();

struct SpecDescription {
  std::string name;            // without options: `a` or `a+b`
  std::string short_text;      // with the options that differ from their defaults
  std::string full_text;       // with every option: equal specs have equal texts
  bool second_moment = false;  // whether it uses the second moment of a gradient
  // Whether a reduce gives an update with momentum inside instead of a mean, so that the
  // optimizer must have none of its own.
  bool momentum_inside = false;
  // Then: the option and value with which the method applies no momentum.
  std::string without_momentum;
  // Whether a reduce gives the signs of the mean, for plain SGD with any weight decay.
  bool hands_out_signs = false;
};

// Throws Error{bad_spec} for a spec that is not valid; the message lists the valid names.
[[nodiscard]] THINREDUCE_EXPORT SpecDescription describe_spec(std::string_view spec);

}  // namespace thinreduce
