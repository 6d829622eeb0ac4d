#include "thinreduce/methods/powersgd/orthonormal.h"

#include <cmath>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/dot.h"
#include "thinreduce/wire/mix.h"

namespace thinreduce {
namespace {

// A column with no more than this fraction of its length outside the span of the previous columns
// is numerically dependent: the rest of a float32 column is rounding error.
constexpr double kDependent = 1e-5;

double length(std::span<const float> column) {
  return std::sqrt(kernels::dot(column, column));
}

void scale_to_one(std::span<float> column, double from) {
  for (auto& value : column) value = static_cast<float>(value / from);
}

}  // namespace

void random_columns(std::span<float> columns, std::uint64_t seed) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    // The sum of four uniform 16-bit numbers is nearly normal and needs no libm.
    const std::uint64_t bits = mix(seed + i);
    const auto sum = static_cast<std::int32_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) +
                                               (bits >> 32 & 0xFFFF) + (bits >> 48));
    columns[i] = static_cast<float>(sum - 2 * 65535) / 37837.0f;
  }
}

void orthonormalise(std::span<float> columns, std::size_t rows, std::uint64_t seed) {
  ensure(rows > 0 && columns.size() % rows == 0 && columns.size() / rows <= rows,
         "orthonormalise: there must be whole columns, at most as many as rows", columns.size(),
         rows);
  const auto column = [&](std::size_t k) { return columns.subspan(k * rows, rows); };
  // Makes column k orthogonal to the previous ones.
  const auto project = [&](std::size_t k) {
    for (std::size_t before = 0; before < k; ++before) {
      const double shared = kernels::dot(column(k), column(before));
      for (std::size_t i = 0; i < rows; ++i) {
        column(k)[i] = static_cast<float>(column(k)[i] - shared * column(before)[i]);
      }
    }
  };
  for (std::size_t k = 0; k < columns.size() / rows; ++k) {
    for (std::uint64_t attempt = 0;; ++attempt) {
      const double whole = length(column(k));
      if (whole > 0) {
        scale_to_one(column(k), whole);
        project(k);
        const double left = length(column(k));
        if (left > kDependent) {
          scale_to_one(column(k), left);
          project(k);
          scale_to_one(column(k), length(column(k)));
          break;
        }
      }
      random_columns(column(k), mix(seed + mix(k)) + attempt * rows);
    }
  }
}

}  // namespace thinreduce
