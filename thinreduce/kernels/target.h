// Which instruction set the kernels use. Every kernel gives the same bits on every target and in
// the scalar reference; the choice is about speed alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace thinreduce::kernels {

// What this CPU can run, best first; the last is always "reference", the plain scalar loops.
[[nodiscard]] std::vector<std::string> available_targets();

// The one in use: the best, unless THINREDUCE_SIMD names another when the first kernel runs. Like
// that first kernel, throws Error{unavailable} when THINREDUCE_SIMD names one that is not there.
[[nodiscard]] std::string active_target();

// Switches all kernels of this process; a kernel that runs at that moment ends as it began.
// Throws Error{unavailable} listing what there is.
void use_target(std::string_view name);

}  // namespace thinreduce::kernels
