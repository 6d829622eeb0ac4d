// topk: each rank sends its elements of largest magnitude; the others wait in the residual.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo topk_info();

}  // namespace thinreduce
