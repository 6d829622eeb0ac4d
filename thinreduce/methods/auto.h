// The specs among which `auto` chooses.
#pragma once

#include <string>
#include <vector>

#include "thinreduce/method/spec.h"

namespace thinreduce {

// The settings of an `auto` spec.
struct AutoOptions {
  double max_error = 0;          // of a step's mean: squared error relative to its energy
  std::vector<Spec> candidates;  // most exact first; the first is fp32
  bool try_all = false;          // candidates are tried even where they can't be chosen
};

// Returns the candidates of a spec for which is_auto() holds.
[[nodiscard]] AutoOptions auto_options(const Spec& spec);

}  // namespace thinreduce
