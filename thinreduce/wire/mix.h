// The finalizer of SplitMix64: turns a counter into 64 well-mixed bits.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace thinreduce {

[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

// Returns 64 bits that depend on all numbers and their order.
[[nodiscard]] constexpr std::uint64_t mix(std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t x = 0;
  for (const std::uint64_t number : numbers) x = mix(x ^ number);
  return x;
}

}  // namespace thinreduce
