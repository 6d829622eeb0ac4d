// ndqsg: nested dithered quantization. Some ranks send dithered codes; their mean is side
// information for decoding the other ranks' codes, which are sent modulo a small number.
#pragma once

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] MethodInfo ndqsg_info();

}  // namespace thinreduce
