// Rows of floats times a matrix, and the elementwise loops around it.
//
// Every element of a product is summed over the matrix's rows in order, in one accumulator and with
// separate multiplications and additions, so the results do not depend on the vector width.
#pragma once

#include <cstddef>
#include <span>

namespace thinreduce::kernels {

// The rows of a matrix are padded to a multiple of this, the widest vector in floats.
inline constexpr std::size_t kColumnBlock = 16;

[[nodiscard]] constexpr std::size_t padded_columns(std::size_t columns) {
  return (columns + kColumnBlock - 1) / kColumnBlock * kColumnBlock;
}

// Row-major. The rows are padded: they are padded_columns(columns) floats apart.
struct Matrix {
  std::span<const float> values;
  std::size_t rows = 0;
  std::size_t columns = 0;
  [[nodiscard]] std::size_t stride() const { return padded_columns(columns); }
};

// out = in * matrix: `in` holds any number of vectors of matrix.rows floats one after another,
// `out` as many of matrix.columns floats.
void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out);

// out[i] = a[i] + b[i] * factor
void add_multiple(std::span<const float> a, std::span<const float> b, float factor,
                  std::span<float> out);

// For each i, with the values as they were before:
//   kept[i] += values[i] - mean[i] * (weight * share)
//   values[i] = (decoded[i] + mean[i] * weight) * share
// `kept` may be empty: then only the second line.
struct Delivery {
  std::span<const float> decoded;
  std::span<const float> mean;
  float weight = 0;
  float share = 1;
};
void deliver(const Delivery& delivery, std::span<float> kept, std::span<float> values);

// The definition of the results above.
namespace reference {
void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out);
void add_multiple(std::span<const float> a, std::span<const float> b, float factor,
                  std::span<float> out);
void deliver(const Delivery& delivery, std::span<float> kept, std::span<float> values);
}  // namespace reference

}  // namespace thinreduce::kernels
