// collective=owner of the quantizers: every rank sends its codes of a range to the range's owner,
// which answers with the mean, quantized more finely.
//
// The answer is dithered, so the mean stays right on average. With feedback, the part of the sum
// that an answer lacks becomes the residual of the owner, in its own range.
#pragma once

#include <memory>

#include "thinreduce/methods/quantize/quantized_gather.h"

namespace thinreduce {

[[nodiscard]] std::unique_ptr<Method> make_quantized_owner(const QuantizedGatherOptions& options);

}  // namespace thinreduce
