// The list of all methods.
#pragma once

#include <vector>

#include "thinreduce/method/method.h"

namespace thinreduce {

// Returns all methods, simple ones first.
[[nodiscard]] const std::vector<MethodInfo>& methods();

// Returns the description of the spec `auto`, which is no method: the session chooses one per
// bucket.
[[nodiscard]] const MethodInfo& auto_info();

}  // namespace thinreduce
