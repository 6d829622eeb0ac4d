// ndqsg: nested dithered quantization. Some ranks send dithered codes; their mean is side
// information for the others, which need only send their codes modulo a small number.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo ndqsg_info();

}  // namespace thinreduce
