// Divides a bucket into the matrices that powersgd compresses and the elements that it sends plain.
#pragma once

#include <cstddef>
#include <vector>

#include "thinreduce/method/layout.h"

namespace thinreduce {

// Elements [offset, offset + rows * columns) of the bucket, row by row.
struct MatrixView {
  std::size_t offset = 0;
  std::size_t rows = 0;
  std::size_t columns = 0;
  [[nodiscard]] std::size_t elements() const { return rows * columns; }
};

struct MatrixViews {
  std::vector<MatrixView> matrices;
  std::vector<MatrixView> plain;  // one row each; sent uncompressed
};

// A tensor (out, in, h, w) becomes a matrix of `out` rows. A bucket without tensors becomes one
// nearly square matrix; its last elements, less than a row, are plain. One-dimensional tensors and
// matrices whose two thin factors of `basis` columns would not be smaller are plain. Raw tensors
// are left out.
[[nodiscard]] MatrixViews view_as_matrices(const BucketLayout& layout, std::size_t basis);

}  // namespace thinreduce
