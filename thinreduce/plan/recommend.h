// The recommendation of local steps (docs/local-steps.md) in a plan.
#pragma once

#include "thinreduce/plan/plan.h"

namespace thinreduce {

// Sets compute, local_steps and advice of a plan for steps that compute for `compute` seconds; 0:
// not known.
void recommend_for(Plan& plan, double compute);

}  // namespace thinreduce
