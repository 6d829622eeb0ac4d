// The instruction set of the kernels. Results have the same bits on all of them; the choice only
// affects the speed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "thinreduce/export.h"

namespace thinreduce {

// Returns the targets that this CPU can run, best first. The last is always "reference", the plain
// scalar loops.
[[nodiscard]] THINREDUCE_EXPORT std::vector<std::string> simd_targets();

// Returns the target in use: the best one, unless the environment variable THINREDUCE_SIMD names
// another when the first kernel runs. Throws Error{unavailable} when this CPU lacks that one.
[[nodiscard]] THINREDUCE_EXPORT std::string simd_target();

// Chooses the target for all kernels of this process; a kernel that is running is not affected.
// Throws Error{unavailable} when this CPU lacks the target; the message lists the others.
THINREDUCE_EXPORT void use_simd_target(std::string_view name);

}  // namespace thinreduce
