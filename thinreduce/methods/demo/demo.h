// demo: each rank keeps a momentum, sends its largest cosine coefficients and takes them off it.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo demo_info();

}  // namespace thinreduce
