// fft: each rank sends the strongest frequencies of its gradient as range floats (FFT-based
// sparsification).
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo fft_info();

}  // namespace thinreduce
