// Products of a large row-major matrix M with thin matrices of a few columns. The order of all
// additions is fixed, and no multiplication is fused with an addition.
//
// Thin matrices are stored column by column: column k of an m x r matrix is elements [k * m,
// (k + 1) * m).
#pragma once

#include <cstddef>
#include <span>

namespace thinreduce::kernels {

// Element (i, j) of M is values[i * columns + j]; there are values.size() / columns rows.
struct ConstMatrix {
  std::span<const float> values;
  std::size_t columns = 0;
};

// A window of rows [first, first + M's rows) of a thin matrix of `rows` rows.
struct ThinRows {
  std::span<float> values;
  std::size_t rows = 0;
  std::size_t first = 0;
};
struct ConstThinRows {
  std::span<const float> values;
  std::size_t rows = 0;
  std::size_t first = 0;
};

// P = M Q, where Q has one row per column of M. Each element is the sum of 16 partial sums: partial
// sum l adds the columns j with j mod 16 = l in ascending order; the 16 are then added as a tree.
void times(const ConstMatrix& m, std::span<const float> q, const ThinRows& p);
// Q += M' P, one row of M after another.
void add_transposed_times(const ConstMatrix& m, const ConstThinRows& p, std::span<float> q);
// out = P Q', columns of P and Q in ascending order; m -= out.
struct ProductSplit {
  std::span<float> m;
  std::span<float> out;
};
void split_product(const ConstThinRows& p, std::span<const float> q, const ProductSplit& split);

// The scalar definition of the functions above.
namespace reference {
void times(const ConstMatrix& m, std::span<const float> q, const ThinRows& p);
void add_transposed_times(const ConstMatrix& m, const ConstThinRows& p, std::span<float> q);
void split_product(const ConstThinRows& p, std::span<const float> q, const ProductSplit& split);
}  // namespace reference

}  // namespace thinreduce::kernels
