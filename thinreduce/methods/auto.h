// The specs among which `auto` chooses.
#pragma once

#include <string>
#include <vector>

#include "thinreduce/method/spec.h"

namespace thinreduce {

// What a candidate is to the search for the best one.
enum class Role {
  uncompressed,  // the first: floats, which all others are compared with
  halved,        // half of the bytes, hardly an error, and less computing than others
  ladder,        // one of the settings of a quantizer, finer ones first: the search climbs them
  substitute,    // sends as few bytes as a coarse setting of the ladder, and computes for longer
  other,         // seldom chosen
};

// A setting of the ladder computes about this many times as long as an uncompressed candidate, and
// half as many times as long as a halved one.
inline constexpr double kBusyOfLadder = 5;

struct Candidate {
  Spec spec;
  Role role = Role::other;
};

// The settings of an `auto` spec.
struct AutoOptions {
  double max_error = 0;               // of a step's mean: squared error relative to its energy
  std::vector<Candidate> candidates;  // most exact first
  bool try_all = false;               // candidates are tried even where they can't be chosen
};

// Returns the candidates of a spec for which is_auto() holds.
[[nodiscard]] AutoOptions auto_options(const Spec& spec);

}  // namespace thinreduce
