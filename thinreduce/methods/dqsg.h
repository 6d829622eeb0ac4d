// dqsg: dithered quantization. A random offset that every rank can replay is added before rounding
// and subtracted after decoding, so that the error is uniform and independent of the gradient.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo dqsg_info();

}  // namespace thinreduce
