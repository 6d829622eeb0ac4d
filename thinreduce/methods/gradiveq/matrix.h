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

// Memory that is needed next. A product leaves the path to memory idle, so it prefetches these
// runs, all of the length of the first, while it computes.
using Ahead = std::span<const std::span<const float>>;

// out = in * matrix: `in` holds any number of vectors of matrix.rows floats one after another,
// `out` as many of matrix.columns floats.
void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out,
              Ahead ahead = {});

// out[i] = (a[i] + b[i] * factor) * scale
void add_multiple(std::span<const float> a, std::span<const float> b, float factor,
                  std::span<float> out, float scale = 1);

// The end of a step, in one pass over memory: `kept` takes in the gradient without its mean, and
// the mean over the ranks replaces the gradient in `values`:
//   kept[i] += values[i] - mean[i] * (weight * scale)   unless `kept` is empty
//   values[i] = (rebuilt[i] + mean[i] * weight) * scale
struct Delivery {
  std::span<const float> rebuilt;
  std::span<const float> mean;
  float weight = 0;
  float scale = 1;
};
void deliver(const Delivery& delivery, std::span<float> kept, std::span<float> values);

// The definition of the results above.
namespace reference {
void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out,
              Ahead ahead = {});
void add_multiple(std::span<const float> a, std::span<const float> b, float factor,
                  std::span<float> out, float scale);
void deliver(const Delivery& delivery, std::span<float> kept, std::span<float> values);
}  // namespace reference

}  // namespace thinreduce::kernels
