// Every method there is.
#pragma once

#include <vector>

#include "thinreduce/method/method.h"

namespace thinreduce {

// In the order in which people should meet them.
[[nodiscard]] const std::vector<MethodInfo>& methods();

}  // namespace thinreduce
