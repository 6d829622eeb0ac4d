// The loops behind exact selection by magnitude; top_selector.h puts them together.
//
// A magnitude is the bits of |value|: as integers, they have the order of the floats.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

[[nodiscard]] inline std::uint32_t magnitude(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffff;
}

// Elements of a run, in ascending order of their index.
struct Candidates {
  std::span<std::uint32_t> indices;
  std::span<float> values;
};

// Writes index and value of every element whose magnitude is at least `least` (1 to 2^31-1) and
// returns how many there are. `first` is the index of run[0]. `out` has room for the whole run.
[[nodiscard]] std::size_t collect(std::span<const float> run, std::uint32_t first,
                                  std::uint32_t least, Candidates out);
// The same after run[i] += addend[i], in one pass over the memory.
[[nodiscard]] std::size_t add_collect(std::span<float> run, std::span<const float> addend,
                                      std::uint32_t first, std::uint32_t least, Candidates out);

// The k-th largest value: its magnitude, and how many of that magnitude are among the k largest.
struct KthLargest {
  std::uint32_t magnitude = 0;
  std::size_t ties = 0;
};
// By a radix histogram; 1 <= k <= values.size().
[[nodiscard]] KthLargest kth_largest(std::span<const float> values, std::size_t k);

// What defines the results above.
namespace reference {
[[nodiscard]] std::size_t collect(std::span<const float> run, std::uint32_t first,
                                  std::uint32_t least, Candidates out);
[[nodiscard]] std::size_t add_collect(std::span<float> run, std::span<const float> addend,
                                      std::uint32_t first, std::uint32_t least, Candidates out);
}  // namespace reference

}  // namespace thinreduce::kernels
