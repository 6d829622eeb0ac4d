// collective=owner of variance: every rank sends its unambiguous sums to the owners of their
// elements, and an owner answers with the largest totals of its range.
//
// Different ranks find different elements unambiguous, so an owner gets up to N times as many
// elements as a rank sends. It answers with little more than a rank sends: the largest totals. The
// others, and the rounding errors of the answer, wait in its own sums, where they count as its own.
#pragma once

#include <memory>

#include "thinreduce/method/method.h"
#include "thinreduce/methods/variance/options.h"

namespace thinreduce {

[[nodiscard]] std::unique_ptr<Method> make_variance_owner(const BucketLayout& layout,
                                                          const VarianceOptions& options);

}  // namespace thinreduce
