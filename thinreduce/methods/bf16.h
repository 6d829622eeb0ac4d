// bf16: gradients travel as bfloat16, half the bytes. No residual: what rounding loses is lost.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo bf16_info();

}  // namespace thinreduce
