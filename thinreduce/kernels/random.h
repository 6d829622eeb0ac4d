// Random bits from a counter: draw `index` of a stream depends only on its key and the index, so
// any rank, thread or CPU can replay any part of any stream, in any order.
//
// A draw costs two 32-bit multiplications, so that vector code keeps up with memory;
// methods/quantize/random-inl.h has the same function for Highway vectors.
#pragma once

#include <cstdint>

namespace thinreduce::kernels {

// The key of one stream of 2^32 draws; wire/random.h makes keys.
struct RandomKey {
  std::uint32_t first = 0;
  std::uint32_t second = 0;

  bool operator==(const RandomKey&) const = default;
};

// Multipliers of a finalizer with low bias (every bit of the input flips every bit of the output
// with a probability near one half). The second half of the key is mixed in between the
// multiplications, so that streams of different keys are not permutations of one sequence.
inline constexpr std::uint32_t kRandomFirstFactor = 0x7feb352d;
inline constexpr std::uint32_t kRandomSecondFactor = 0x846ca68b;

[[nodiscard]] constexpr std::uint32_t random_bits(RandomKey key, std::uint32_t index) {
  std::uint32_t x = index ^ key.first;
  x ^= x >> 16;
  x *= kRandomFirstFactor;
  x ^= key.second;
  x ^= x >> 15;
  x *= kRandomSecondFactor;
  x ^= x >> 16;
  return x;
}

}  // namespace thinreduce::kernels
