// fp32: the uncompressed ring all-reduce, the baseline of every comparison.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo fp32_info();

}  // namespace thinreduce
