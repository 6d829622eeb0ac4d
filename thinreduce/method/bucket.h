// A bucket as a method sees it.
#pragma once

#include <cstddef>
#include <span>

#include "thinreduce/method/layout.h"

namespace thinreduce {

struct Bucket {
  // Only the tensors that the method must compress. The engine sends the elements outside them
  // uncompressed: their values are 0 during reduce(), and whatever a method leaves there is
  // overwritten. Without tensors, the bucket is one run of unknown shape.
  const BucketLayout& layout;
  std::span<float> values;  // in: this rank's gradient; out: the mean over the ranks
  // Optional: per element, the sum over the local batch of (per-sample gradient / batch size)^2.
  std::span<const float> second_moment;
};

// Calls visit(first, count) for every run of elements that a method must compress, in order.
template <typename Visit>
void for_compressed(const BucketLayout& layout, Visit&& visit) {
  if (layout.tensors.empty()) visit(std::size_t{0}, layout.elements);
  for (const Tensor& tensor : layout.tensors) visit(tensor.offset, tensor.elements());
}

// Calls visit(first, count) for every run of elements between those, in order.
template <typename Visit>
void for_uncompressed(const BucketLayout& layout, Visit&& visit) {
  std::size_t next = 0;
  for_compressed(layout, [&](std::size_t first, std::size_t count) {
    if (first > next) visit(next, first - next);
    next = first + count;
  });
  if (next < layout.elements) visit(next, layout.elements - next);
}

}  // namespace thinreduce
