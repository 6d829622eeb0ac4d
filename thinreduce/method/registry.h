// The list of all methods.
#pragma once

#include <vector>

#include "thinreduce/method/method.h"

namespace thinreduce {

// Returns all methods, simple ones first.
[[nodiscard]] const std::vector<MethodInfo>& methods();

}  // namespace thinreduce
