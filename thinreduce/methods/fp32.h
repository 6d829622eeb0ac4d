// fp32: the uncompressed ring all-reduce that everything is measured against.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo fp32_info();

}  // namespace thinreduce
