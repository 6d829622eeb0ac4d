// Finds the code of a kernel for the target in use. Only .cc files of kernels include this.
//
// How to write a kernel, with `add` of floats.h and floats.cc as the example:
//
// - The header declares kernels::add and, with the same parameters, kernels::reference::add.
//
// - The .cc is compiled once per target by Highway's foreach_target.h, which is included first,
// then
//   highway.h. The part in HWY_NAMESPACE is the vector code. Whole vectors use Highway; the
//   remaining elements use reference::add, so that no access goes past the end of a span.
//
// - The part in HWY_ONCE starts with the reference: the plain loop that defines the result. Then
//   THINREDUCE_KERNEL(add) collects the targets' functions in a table, and the public function is
//   `THINREDUCE_CALL(add)(sum, in)`.
//
// The results must be the same bits on all targets: no MulAdd, no sums across lanes or in an order
// that depends on Lanes(d), no ApproximateReciprocal. kernels_test compares all targets.
//
// Highway's one-lane target HWY_SCALAR is compiled too, but never chosen: the reference replaces
// it. A kernel needs an #if around operations that HWY_SCALAR lacks.
//
// Highway's own choice of target holds for the whole process, including other libraries that use
// Highway, so thinreduce keeps a separate choice.
#pragma once

#include <cstddef>

#include "hwy/highway.h"

namespace thinreduce::kernels::dispatch {

// Returns the Highway target in use; null for the reference. Throws as active_target() does.
[[nodiscard]] const hwy::ChosenTarget* chosen_target();

// Highway's tables have a single entry if the build allows a single target (-march=native).
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
