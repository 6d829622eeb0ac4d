// bf16: sends gradients as bfloat16, half the bytes. Rounding errors are not kept.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo bf16_info();

}  // namespace thinreduce
