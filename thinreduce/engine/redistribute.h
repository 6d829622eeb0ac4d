// The states of a world of N ranks, turned into states for a world of M: a run that goes on with
// more or fewer ranks keeps what its methods still owe to the model.
//
// What every rank holds alike (a mean, a basis) is copied. Where ranks differ in a per-element
// field, it is a residual: old rank r's goes to new rank r mod M, and where several meet they are
// added, so the sum over all ranks stays. A new rank that gets none starts with zeros.
#pragma once

#include <vector>

#include "thinreduce/engine/state_file.h"

namespace thinreduce {

// `states` of all old ranks, in any order. Throws Error{bad_state} unless they are the whole world
// of one run, saved at the same step.
[[nodiscard]] std::vector<SessionState> redistribute(std::vector<SessionState> states, int world);

}  // namespace thinreduce
