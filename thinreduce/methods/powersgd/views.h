// A bucket as matrices: what PowerSGD compresses, and what is not worth it.
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
  std::vector<MatrixView> plain;  // each one row; travels as it is
};

// A tensor (out, in, h, w) is a matrix of `out` rows. A bucket without tensors is one matrix as
// near to a square as can be, and less than a row at its end is plain. Tensors of one dimension,
// and matrices whose two thin factors would be no smaller than themselves, are plain; raw ones are
// left out.
[[nodiscard]] MatrixViews view_as_matrices(const BucketLayout& layout, std::size_t rank);

}  // namespace thinreduce
