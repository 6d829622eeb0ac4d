// terngrad: stochastic rounding to three levels; a baseline for dqsg.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo terngrad_info();

}  // namespace thinreduce
