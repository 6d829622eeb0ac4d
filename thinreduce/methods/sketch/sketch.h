// Sketched-SGD: the sum of the ranks' Count Sketches tells where the sum of their gradients is
// large; the exact values there are summed in a second round.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo sketch_info();

}  // namespace thinreduce
