// Variance-based compression: an element's gradients are summed up, and their sum travels as soon
// as it is unambiguous, that is, large against the spread of the samples that it consists of.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo variance_info();

}  // namespace thinreduce
