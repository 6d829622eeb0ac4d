// Cosine and sine of a whole number of n-th parts of a turn, with the same bits on every machine.
//
// libm may round its last bit as it likes, and a twiddle factor that differs in one bit makes other
// means. Here only double additions and multiplications are used, which IEEE 754 defines to the
// last bit, in an order that is written down (the build forbids contraction to FMA).
#pragma once

#include <cstddef>

namespace thinreduce::kernels {

struct CosSin {
  double cos = 1;
  double sin = 0;
};

// Of the angle 2*pi*k/n; n is a power of two, at least 8. The error is below 2e-16.
[[nodiscard]] CosSin turn(std::size_t k, std::size_t n);

}  // namespace thinreduce::kernels
