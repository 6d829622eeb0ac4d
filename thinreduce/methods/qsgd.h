// qsgd and terngrad: stochastic rounding to a few levels, the baselines that dqsg is compared with.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo qsgd_info();
[[nodiscard]] MethodInfo terngrad_info();

}  // namespace thinreduce
