// demo: each rank keeps a momentum, sends its largest DCT coefficients and subtracts
// them from it.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo demo_info();

}  // namespace thinreduce
