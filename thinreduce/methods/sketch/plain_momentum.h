// Momentum for the elements that the engine sends uncompressed: biases, small tensors, and every
// element during warm-up. With it, all elements of a bucket get an update of the same kind.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinreduce/method/archive.h"
#include "thinreduce/method/layout.h"

namespace thinreduce {

class PlainMomentum {
 public:
  // With `momentum` 0 it does nothing. A layout without elements stands for a bucket of which
  // nothing is compressed.
  PlainMomentum(const BucketLayout& layout, float momentum) : layout_(layout), momentum_(momentum) {
    reserve();
  }

  // Replaces the means by velocity = momentum * velocity + mean. `means` holds all elements of the
  // bucket in a warm-up step, and afterwards those outside the layout's tensors, side by side. In
  // the latter case nothing can fail, because the method has delivered its means by then.
  void apply(std::span<float> means);

  // Throws Error{bad_state} when the velocity that was loaded does not fit the layout.
  void state(Archive& archive);

 private:
  // Keeps only the velocity of the elements outside the tensors.
  void end_warmup();
  // Returns the number of elements outside the tensors.
  [[nodiscard]] std::size_t outside() const;
  void reserve();

  BucketLayout layout_;
  float momentum_;
  std::vector<float> velocity_;  // as long as the last `means`
};

}  // namespace thinreduce
