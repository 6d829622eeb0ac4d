// From a kernel's name to its code for the target in use. For the .cc files of this folder only.
//
// How to write a kernel, with `add` of floats.h and floats.cc as the example:
//
// - The header declares kernels::add and, with the same parameters, kernels::reference::add.
//
// - The .cc is compiled once for each target by Highway's foreach_target.h, which comes first, then
//   highway.h. The part in HWY_NAMESPACE is the vector code. Whole vectors go through Highway; what
//   is left at the end goes through reference::add, so nothing passes the end of a span.
//
// - The part in HWY_ONCE starts with the reference: the plain loop that defines the result. Then
//   THINREDUCE_KERNEL(add) collects the targets' functions in a table, and the public function is
//   `THINREDUCE_CALL(add)(sum, in)`.
//
// The results must be the same bits on all targets: no MulAdd, no sums across lanes or in an order
// that depends on Lanes(d), no ApproximateReciprocal. kernels_test compares all targets.
//
// Highway's one-lane target HWY_SCALAR is compiled too, but never chosen: the reference takes its
// place. A kernel that uses operations which HWY_SCALAR lacks has an #if around them.
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
