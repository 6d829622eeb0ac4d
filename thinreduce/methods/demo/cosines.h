// The cosine coefficients of a bucket's chunks, chunk after chunk.
//
// The compressed tensors are cut into chunks of n elements, the last of each tensor padded with
// zeros (FftBlocks). Coefficient q of chunk c, lowest frequency first, stands at [c * n + q]; the
// transform is the orthonormal DCT-II. The bits do not depend on the target or the threads.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "thinreduce/collective/workers.h"
#include "thinreduce/kernels/aligned.h"
#include "thinreduce/methods/fft/blocks.h"

namespace thinreduce {

class Cosines {
 public:
  Cosines(const BucketLayout& layout, std::size_t chunk);

  // Returns the number of coefficients: whole chunks.
  [[nodiscard]] std::size_t size() const { return blocks_.blocks() * blocks_.block_length(); }

  // Replaces `coefficients` by those of `values`, which are a whole bucket.
  void forward(std::span<const float> values, std::span<float> coefficients, Workers workers);
  // Transforms back and calls take(offset, floats) for every run of the bucket, at most once per
  // element. Threads call it at a time, for different runs.
  using Take = std::function<void(std::size_t offset, std::span<const float> floats)>;
  void inverse(std::span<const float> coefficients, const Take& take, Workers workers);

 private:
  // Calls visit(lane, index of the first coefficient) for every chunk of a group.
  template <typename Visit>
  void for_chunks(std::size_t group, const Visit& visit) const;
  void set_threads(std::size_t threads);

  FftBlocks blocks_;
  std::vector<kernels::AlignedFloats> rooms_;  // the spectrum of a group, by thread
};

}  // namespace thinreduce
