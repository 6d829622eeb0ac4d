// collective=owner of top-k: every rank sends its largest elements to the owners of their ranges,
// and an owner answers with the largest sums of its range.
//
// An owner selects from the whole sum, in which its own part is complete. The sums that it does not
// send stay in its own residual. Values travel as bfloat16; a residual keeps their rounding errors.
#pragma once

#include <cstddef>
#include <memory>

#include "thinreduce/method/method.h"

namespace thinreduce {

[[nodiscard]] std::unique_ptr<Method> make_topk_owner(std::size_t elements, double density,
                                                      bool feedback);

}  // namespace thinreduce
