// Orthonormal columns with the same bits on every CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce {

// Replaces the columns of a thin matrix, kept one after another and each `rows` long, by an
// orthonormal basis of their span, by modified Gram-Schmidt, done twice. A column that depends on
// the ones before it, or is zero, is replaced by a pseudo-random direction: a basis always has as
// many columns as the matrix. At most as many columns as rows.
void orthonormalise(std::span<float> columns, std::size_t rows, std::uint64_t seed);

// Pseudo-random numbers, about normal, from a counter: the start of a power iteration.
void random_columns(std::span<float> columns, std::uint64_t seed);

}  // namespace thinreduce
