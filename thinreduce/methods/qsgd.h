// qsgd: stochastic rounding to a few levels of each block's 2-norm; a baseline for dqsg.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo qsgd_info();

}  // namespace thinreduce
