// The instruction set (target) that the kernels use. Every kernel gives the same bits on every
// target and in the scalar reference; the choice affects only speed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace thinreduce::kernels {

// Returns the targets that this CPU can run, best first; the last is always "reference", the plain
// scalar loops.
[[nodiscard]] std::vector<std::string> available_targets();

// Returns the target in use: the best, unless THINREDUCE_SIMD names another when the first kernel
// runs. Like that first kernel, throws Error{unavailable} if this CPU cannot run the target that
// THINREDUCE_SIMD names.
[[nodiscard]] std::string active_target();

// Switches all kernels of this process; a kernel that is running finishes on the old target. Throws
// Error{unavailable}, listing the available targets.
void use_target(std::string_view name);

}  // namespace thinreduce::kernels
