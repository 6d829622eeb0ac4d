// Rows of floats times a matrix, and the elementwise loops around it in methods that project.
//
// Every element of a product is summed over the matrix's rows in order, in one accumulator and with
// separate multiplications and additions, so the results do not depend on the vector width.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace thinreduce::kernels {

// The columns of a matrix are padded to a multiple of this, the widest vector in floats.
inline constexpr std::size_t kColumnBlock = 16;

[[nodiscard]] constexpr std::size_t padded_columns(std::size_t columns) {
  return (columns + kColumnBlock - 1) / kColumnBlock * kColumnBlock;
}

// Row-major; `stride` floats a row, a multiple of kColumnBlock, the padding included.
struct Matrix {
  std::span<const float> values;
  std::size_t rows = 0;
  std::size_t stride = 0;
};

// Memory that will be worked on next: fetched into the cache meanwhile, since a product keeps the
// arithmetic busy and the memory idle. All runs have `floats` floats.
struct Ahead {
  std::array<const float*, 3> runs{};
  std::size_t count = 0;  // of runs
  std::size_t floats = 0;
};

// out = in * matrix: `in` holds any number of vectors of matrix.rows floats one after another,
// `out` as many of matrix.stride floats.
void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out,
              const Ahead& ahead = {});

// out[i] = gradient[i] - mean[i] * share
void center(std::span<const float> gradient, std::span<const float> mean, float share,
            std::span<float> out);

// A decoded slice and its shares. For each i, with the values as they were before:
//   kept[i] += values[i] - mean[i] * own_mean
//   values[i] = (decoded[i] + mean[i] * whole_mean) * scale
// `kept` may be empty: then only the second line.
struct Delivery {
  std::span<const float> decoded;
  std::span<const float> mean;
  float own_mean = 0;
  float whole_mean = 0;
  float scale = 1;
};
void deliver(const Delivery& delivery, std::span<float> kept, std::span<float> values);

// What defines the results above.
namespace reference {
void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out,
              const Ahead& ahead);
void center(std::span<const float> gradient, std::span<const float> mean, float share,
            std::span<float> out);
void deliver(const Delivery& delivery, std::span<float> kept, std::span<float> values);
}  // namespace reference

}  // namespace thinreduce::kernels
