// Finds out which of Highway's targets this CPU can run, for builds without Highway's library.
#pragma once

#include <cstdint>

namespace thinreduce::kernels {

// Returns the bits of the targets that this CPU and the kernel support, of those that Highway
// compiles unasked; a test compares them with Highway's own.
[[nodiscard]] std::int64_t cpu_targets();

}  // namespace thinreduce::kernels
