// From a kernel's name to its code for the target in use. For the .cc files of this folder only.
//
// How to write a kernel, with `add` of floats.h and floats.cc as the example:
//
//   - The header declares kernels::add and, with the same parameters, kernels::reference::add.
//   - The .cc is compiled once for each target by Highway's foreach_target.h, which must come
//   first,
//     then highway.h. Its first part, in HWY_NAMESPACE, is the vector code. Whole vectors go
//     through Highway; what is left over at the end goes through reference::add, so no load or
//     store ever passes the end of a span.
//   - Its second part, inside HWY_ONCE, is the reference: the plain loop that defines the result.
//   It
//     is followed by THINREDUCE_KERNEL(add), which collects the targets' functions in a table, and
//     by the public function, which is `THINREDUCE_CALL(add)(sum, in)`.
//
// The results must be the same bits on all targets: no MulAdd, no sums across lanes or in an order
// that depends on Lanes(d), no ApproximateReciprocal. kernels_test compares all targets.
//
// Highway's one-lane target HWY_SCALAR is the baseline of the build, but never chosen: the
// reference takes its place. Kernels that use operations it lacks leave it to the reference with an
// #if.
//
// Highway keeps its own choice of target for the whole process, including other libraries that use
// it, so thinreduce has one apart from that.
#pragma once

#include <cstddef>

#include "hwy/highway.h"

namespace thinreduce::kernels::dispatch {

// The Highway target in use; null for the reference. Throws as active_target() does.
[[nodiscard]] const hwy::ChosenTarget* chosen_target();

// Highway's tables have one entry only when the build allows one target only (-march=native).
template <typename Function, std::size_t entries>
[[nodiscard]] Function* pick(Function* const (&table)[entries], Function* reference) {
  const hwy::ChosenTarget* chosen = chosen_target();
  if (chosen == nullptr) return reference;
  return table[entries == 1 ? 0 : chosen->GetIndex()];
}

}  // namespace thinreduce::kernels::dispatch

#define THINREDUCE_KERNEL(name) HWY_EXPORT(name)
#define THINREDUCE_CALL(name) \
  ::thinreduce::kernels::dispatch::pick(HWY_DISPATCH_TABLE(name), &reference::name)
