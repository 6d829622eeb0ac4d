// top-k: each rank sends its values of largest magnitude; the rest waits in the residual.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo topk_info();

}  // namespace thinreduce
