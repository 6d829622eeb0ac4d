// The loops of exact selection by magnitude; methods/top_selector.h combines them.
//
// A magnitude is the bit pattern of |value|: as integers, magnitudes have the order of the floats.
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
// returns their number. `first` is the index of run[0]. `out` must have room for the whole run.
[[nodiscard]] std::size_t collect(std::span<const float> run, std::uint32_t first,
                                  std::uint32_t least, Candidates out);
// Does run[i] += addend[i], then the same as collect(), in one pass over the memory.
[[nodiscard]] std::size_t add_collect(std::span<float> run, std::span<const float> addend,
                                      std::uint32_t first, std::uint32_t least, Candidates out);

struct KthLargest {
  std::uint32_t magnitude = 0;
  std::size_t ties = 0;  // values of that magnitude among the k largest
};
// Returns the k-th largest magnitude, by a radix histogram; k must be from 1 to values.size().
[[nodiscard]] KthLargest kth_largest(std::span<const float> values, std::size_t k);

// The definition of the results above.
namespace reference {
[[nodiscard]] std::size_t collect(std::span<const float> run, std::uint32_t first,
                                  std::uint32_t least, Candidates out);
[[nodiscard]] std::size_t add_collect(std::span<float> run, std::span<const float> addend,
                                      std::uint32_t first, std::uint32_t least, Candidates out);
}  // namespace reference

}  // namespace thinreduce::kernels
