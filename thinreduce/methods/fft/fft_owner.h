// collective=owner of fft: every rank sends its strongest frequencies to the owners of their
// blocks, and an owner answers with the strongest sums of its blocks.
//
// An owner selects from the whole sum, in which its own part is complete. Transformed back, the
// part of the sum that it does not send stays in its own residual.
#pragma once

#include <memory>

#include "thinreduce/method/method.h"
#include "thinreduce/methods/fft/options.h"

namespace thinreduce {

[[nodiscard]] std::unique_ptr<Method> make_fft_owner(const MethodSetup& setup,
                                                     const FftOptions& options);

}  // namespace thinreduce
