// Products of a large row-major matrix M and a few thin columns, as PowerSGD needs them. The order
// of every addition is fixed and no multiplication is fused with it.
//
// Thin matrices are kept column after column: column k of an m x r matrix is elements [k * m,
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

// P = M Q, Q with M's columns as its rows. Each element is a sum of 16 partial sums, partial l over
// the columns j with j mod 16 = l in ascending order; these are added as a tree.
void times(const ConstMatrix& m, std::span<const float> q, const ThinRows& p);
// Q += M' P, row after row of M.
void add_transposed_times(const ConstMatrix& m, const ConstThinRows& p, std::span<float> q);
// out = P Q', columns of P and Q in ascending order; m -= out.
struct LowRankSplit {
  std::span<float> m;
  std::span<float> out;
};
void split_product(const ConstThinRows& p, std::span<const float> q, const LowRankSplit& split);

// What defines the results above.
namespace reference {
void times(const ConstMatrix& m, std::span<const float> q, const ThinRows& p);
void add_transposed_times(const ConstMatrix& m, const ConstThinRows& p, std::span<float> q);
void split_product(const ConstThinRows& p, std::span<const float> q, const LowRankSplit& split);
}  // namespace reference

}  // namespace thinreduce::kernels
