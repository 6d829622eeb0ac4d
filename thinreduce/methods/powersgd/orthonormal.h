// Orthonormal columns with the same bits on every CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce {

// Replaces the columns of a thin matrix, stored one after another with `rows` elements each, by an
// orthonormal basis of their span (modified Gram-Schmidt, applied twice). A column that is zero or
// depends on the previous ones is replaced by a pseudo-random direction, so that the number of
// columns stays the same. There must be at most as many columns as rows.
void orthonormalise(std::span<float> columns, std::size_t rows, std::uint64_t seed);

// Fills columns with pseudo-random, nearly normal numbers: the start of a power iteration.
void random_columns(std::span<float> columns, std::uint64_t seed);

}  // namespace thinreduce
