// Random bits from a counter: draw `index` of a stream is a function of its key and the index
// alone, so any rank, thread or CPU can replay any part of any stream, in any order.
//
// Two multiplications of 32 bits a draw, so that vector code keeps up with memory;
// random-inl.h has the same function for Highway vectors.
#pragma once

#include <cstdint>

namespace thinreduce::kernels {

// Names one stream of 2^32 draws. wire/random.h makes keys.
struct RandomKey {
  std::uint32_t first = 0;
  std::uint32_t second = 0;

  bool operator==(const RandomKey&) const = default;
};

// Multipliers and shifts of a finalizer with low bias (every bit of the input flips every bit of
// the output with a chance near one half). The second half of the key comes in between the
// multiplications: streams of different keys are then not the same sequence in another order.
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
