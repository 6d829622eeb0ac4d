// sketch: Sketched-SGD. The sum of the ranks' Count Sketches shows which elements of the summed
// gradient are large; a second round sums their exact values.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo sketch_info();

}  // namespace thinreduce
