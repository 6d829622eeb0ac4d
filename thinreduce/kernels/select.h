// The loops of exact selection by magnitude; methods/top_selector.h combines them.
//
// A magnitude is the bit pattern of |value|: as integers, magnitudes have the order of the floats.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace thinreduce::kernels {

[[nodiscard]] inline std::uint32_t magnitude(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffff;
}

// Elements of a run, in ascending order of their index.
struct Candidates {
  std::span<std::uint32_t> indices;
  std::span<float> values;
};

// Writes index and value of every element whose magnitude is at least `min` (1 to 2^31-1) and
// returns their number. `first` is the index of run[0]. `out` must have room for the whole run.
[[nodiscard]] std::size_t collect(std::span<const float> run, std::uint32_t first,
                                  std::uint32_t min, Candidates out);
// Does run[i] += addend[i], then the same as collect(), in one pass over the memory.
[[nodiscard]] std::size_t add_collect(std::span<float> run, std::span<const float> addend,
                                      std::uint32_t first, std::uint32_t min, Candidates out);

struct KthLargest {
  std::uint32_t magnitude = 0;
  std::size_t ties = 0;  // values of that magnitude among the k largest
};
// Returns the k-th largest magnitude, by a radix histogram; k must be from 1 to values.size().
[[nodiscard]] KthLargest kth_largest(std::span<const float> values, std::size_t k);

// `bits` bits of a magnitude from bit `shift` on, of the values whose higher bits are `decided`.
struct Digit {
  std::uint32_t shift = 0;
  std::uint32_t bits = 0;
  std::uint32_t decided = 0;
};
using DigitCounts = std::array<std::uint32_t, 2048>;
// Adds how often each value of the digit occurs, which must have at most 11 bits.
void count_digits(std::span<const float> values, const Digit& digit, DigitCounts& counts);

// The search behind kth_largest, of values that lie in several places: count(digit, counts) must
// count the digits of all of them. Decides the 31 bits of a magnitude from the top, 11, 10 and 10
// at a time.
template <typename Count>
[[nodiscard]] KthLargest find_kth_largest(std::size_t k, const Count& count) {
  std::uint32_t decided = 0;
  std::size_t wanted = k;  // the answer is the wanted-th largest of those that match
  for (const auto& [shift, bits] : {std::pair{20U, 11U}, {10U, 10U}, {0U, 10U}}) {
    DigitCounts counts{};
    count(Digit{shift, bits, decided}, counts);
    std::uint32_t digit = (1U << bits) - 1;
    while (counts[digit] < wanted) wanted -= counts[digit--];
    decided = decided << bits | digit;
  }
  return {decided, wanted};
}

// Copies the candidates above a magnitude, and the first `ties` of that magnitude, and returns
// their number; `out` may be `in`.
std::size_t keep_largest(KthLargest last, Candidates in, Candidates out);

// The definition of the results above.
namespace reference {
[[nodiscard]] std::size_t collect(std::span<const float> run, std::uint32_t first,
                                  std::uint32_t min, Candidates out);
[[nodiscard]] std::size_t add_collect(std::span<float> run, std::span<const float> addend,
                                      std::uint32_t first, std::uint32_t min, Candidates out);
void count_digits(std::span<const float> values, const Digit& digit, DigitCounts& counts);
std::size_t keep_largest(KthLargest last, Candidates in, Candidates out);
}  // namespace reference

}  // namespace thinreduce::kernels
