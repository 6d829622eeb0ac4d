// FFT sparsification: the strongest frequencies of each rank's gradient, as range floats.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo fft_info();

}  // namespace thinreduce
