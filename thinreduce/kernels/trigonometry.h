// Cosine and sine of k/n of a full turn, with the same bits on every machine.
//
// libm's last bit differs between machines, and a twiddle factor that differs in one bit changes
// the means. This code uses only double arithmetic that IEEE 754 defines to the last bit, in a
// fixed order (the build forbids contraction to FMA).
#pragma once

#include <cstddef>

namespace thinreduce::kernels {

struct CosSin {
  double cos = 1;
  double sin = 0;
};

// Returns cosine and sine of 2*pi*k/n; n must be a power of two, at least 8. The error is below
// 2e-16.
[[nodiscard]] CosSin turn(std::size_t k, std::size_t n);

}  // namespace thinreduce::kernels
