// Turns the states of a world of N ranks into states for a world of M ranks, so that a run
// continues with more or fewer ranks and loses nothing that its methods still owe to the model.
//
// Summed fields (Archive::summed) go from old rank r to new rank r mod M and are added where
// several meet, so their sum over all ranks stays the same; a new rank that gets none starts with
// zeros. Replicated fields are copied. A part that one rank owns moves to the rank that owns it
// now.
#pragma once

#include <vector>

#include "thinreduce/engine/state_file.h"

namespace thinreduce {

// `states` of all old ranks, in any order. Throws Error{bad_state} unless they are the whole world
// of one run, saved at the same step.
[[nodiscard]] std::vector<SessionState> redistribute(std::vector<SessionState> states, int world);

}  // namespace thinreduce
