// A bucket: a run of float32 gradient that is reduced together, with the tensors in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace thinreduce {

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;  // as PyTorch writes it: (out, in, h, w), (out, in), (n)
  std::size_t offset = 0;           // first element in the bucket
  // Travels uncompressed: the engine has set its values to zero for the time of the reduce and
  // overwrites whatever the method leaves there.
  bool raw = false;

  [[nodiscard]] std::size_t elements() const {
    std::size_t count = 1;
    for (auto extent : shape) count *= static_cast<std::size_t>(extent);
    return count;
  }
};

// What stays the same from step to step.
struct BucketLayout {
  std::uint32_t id = 0;
  std::size_t elements = 0;
  std::vector<Tensor> tensors;  // in order, without gaps; empty: one tensor of unknown shape
  std::string spec{};           // how this bucket is reduced; empty: as the session says
};

// Calls visit(first, count) for every stretch of elements that a method has to compress.
template <typename Visit>
void for_compressed(const BucketLayout& layout, Visit&& visit) {
  if (layout.tensors.empty()) visit(std::size_t{0}, layout.elements);
  for (const Tensor& tensor : layout.tensors) {
    if (!tensor.raw) visit(tensor.offset, tensor.elements());
  }
}

struct Bucket {
  const BucketLayout& layout;
  std::span<float> values;  // this rank's gradient in, the mean out
  // Optional: per element, the sum over the local batch of (per-sample gradient / batch size)^2.
  std::span<const float> second_moment;
};

}  // namespace thinreduce
