// The states of a world of N ranks, turned into states for a world of M: a run that goes on with
// more or fewer ranks keeps what its methods still owe to the model.
//
// What a rank owes (Archive::residual and owed) goes from old rank r to new rank r mod M, and where
// several meet it is added, so the sum over all ranks stays; a new rank that gets none starts with
// zeros. Everything else (a mean, a basis) is copied.
#pragma once

#include <vector>

#include "thinreduce/engine/state_file.h"

namespace thinreduce {

// `states` of all old ranks, in any order. Throws Error{bad_state} unless they are the whole world
// of one run, saved at the same step.
[[nodiscard]] std::vector<SessionState> redistribute(std::vector<SessionState> states, int world);

}  // namespace thinreduce
