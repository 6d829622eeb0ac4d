#include "thinreduce/methods/powersgd/orthonormal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "thinreduce/error.h"

namespace thinreduce::orthonormal_test {
namespace {

double dot(const std::vector<float>& columns, std::size_t rows, std::size_t a, std::size_t b) {
  double sum = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    sum += static_cast<double>(columns[a * rows + i]) * columns[b * rows + i];
  }
  return sum;
}

void expect_orthonormal(const std::vector<float>& columns, std::size_t rows) {
  for (std::size_t a = 0; a < columns.size() / rows; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      EXPECT_NEAR(dot(columns, rows, a, b), a == b ? 1 : 0, 2e-6) << a << ", " << b;
    }
  }
}

TEST(Orthonormal, BasisOfTheSameSpan) {
  for (const std::size_t rows : {1u, 2u, 5u, 64u, 1009u}) {
    const std::size_t basis = std::min<std::size_t>(rows, 7);
    std::vector<float> columns(rows * basis);
    random_columns(columns, 1);
    const auto before = columns;
    orthonormalise(columns, rows, 2);
    expect_orthonormal(columns, rows);
    // Each old column is the sum of its projections on the new ones.
    for (std::size_t k = 0; k < basis; ++k) {
      std::vector<double> left(before.begin() + static_cast<long>(k * rows),
                               before.begin() + static_cast<long>((k + 1) * rows));
      for (std::size_t b = 0; b < basis; ++b) {
        double shared = 0;
        for (std::size_t i = 0; i < rows; ++i) {
          shared += static_cast<double>(before[k * rows + i]) * columns[b * rows + i];
        }
        for (std::size_t i = 0; i < rows; ++i) left[i] -= shared * columns[b * rows + i];
      }
      for (const double value : left) EXPECT_NEAR(value, 0, 1e-5);
    }
  }
}

// Zero, repeated and nearly dependent columns and extreme scales still give a basis.
TEST(Orthonormal, AlwaysAFullBasis) {
  constexpr std::size_t kRows = 50;
  std::vector<float> columns(kRows * 6);
  random_columns(columns, 3);
  for (std::size_t i = 0; i < kRows; ++i) {
    columns[kRows + i] = columns[i] * 2;
    columns[2 * kRows + i] = 0;
    columns[3 * kRows + i] = columns[i] + 1e-4f * columns[3 * kRows + i];
    columns[4 * kRows + i] *= 1e-30f;
    columns[5 * kRows + i] *= 1e30f;
  }
  auto again = columns;
  orthonormalise(columns, kRows, 4);
  expect_orthonormal(columns, kRows);
  orthonormalise(again, kRows, 4);
  EXPECT_EQ(columns, again);
  std::vector<float> square(9);
  orthonormalise(square, 3, 5);
  expect_orthonormal(square, 3);
  EXPECT_THROW(orthonormalise(square, 2, 5), BrokenInvariant);
}

TEST(Orthonormal, RandomColumnsAreAboutNormal) {
  std::vector<float> values(100000);
  random_columns(values, 6);
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  EXPECT_NEAR(sum / 1e5, 0, 5 / std::sqrt(1e5));
  EXPECT_NEAR(squares / 1e5, 1, 5 * std::sqrt(2 / 1e5));
}

}  // namespace
}  // namespace thinreduce::orthonormal_test
