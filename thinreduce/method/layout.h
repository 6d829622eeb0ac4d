// The layout of a bucket: a run of float32 gradient that is reduced together, and the tensors in
// it. The shapes matter: methods compress a convolution by its channels, a matrix by its rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "thinreduce/export.h"

namespace thinreduce {

struct THINREDUCE_EXPORT Tensor {
  std::string name;
  std::vector<std::int64_t> shape;  // as PyTorch writes it: (out, in, h, w), (out, in), (n)
  std::size_t offset = 0;           // index of its first element in the bucket

  // Returns the product of the dimensions, 1 for a scalar.
  [[nodiscard]] std::size_t elements() const;
};

// The part of a bucket that is the same in every step.
struct THINREDUCE_EXPORT BucketLayout {
  std::uint32_t id = 0;  // the same on all ranks, and unique in a session
  std::size_t elements = 0;
  std::vector<Tensor> tensors;  // in order, without gaps; empty: one run of unknown shape
  std::string spec{};           // the bucket's own spec; empty: the session's
  std::string name{};           // what the caller calls the bucket; the ranks compare it
  // The word with which errors name the values, as in "the parameter 'weight' of rank 1".
  std::string kind = "gradient";

  // Appends a tensor at the end of the bucket.
  void add(std::string name, std::vector<std::int64_t> shape);
  // Returns "index 12", followed by the name of the tensor or bucket that it is in, if any.
  [[nodiscard]] std::string describe_element(std::uint64_t index) const;
  // Returns "the gradient of rank 1 is NaN or Inf at index 12"; for another kind of values than a
  // gradient, "the parameter 'weight' of rank 1 is NaN or Inf at element 12".
  [[nodiscard]] std::string describe_nonfinite(int rank, std::uint64_t index) const;
};

}  // namespace thinreduce
