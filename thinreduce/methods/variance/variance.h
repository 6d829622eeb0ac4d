// variance: sums each element's gradients over steps and sends the sum as soon as it is
// unambiguous, that is, large against the spread of its samples.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo variance_info();

}  // namespace thinreduce
