// Times in 16 bits: 6 bits of exponent and 10 of mantissa. Every code is a finite time of at least
// 0 seconds, so a peer can't send one that is none, and every machine reads the same number.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace thinreduce {

namespace short_seconds {

inline constexpr unsigned kDroppedBits = 23 - 10;
// The first exponent is that of 2^-40 s; the last that of 2^23 s, 97 days.
inline constexpr std::uint32_t kFirst = (127U - 40U) << 10U;
inline constexpr std::uint32_t kMax = 0xFFFF;

}  // namespace short_seconds

// Returns the code of the nearest time, off by at most one part in 2048. 0 stands for times that
// are too short; NaN and negative numbers count as such.
[[nodiscard]] inline std::uint16_t encode_seconds(float seconds) {
  if (!(seconds > 0)) return 0;
  const std::uint64_t bits = std::bit_cast<std::uint32_t>(seconds);
  const std::uint64_t rounded =
      (bits + (1U << (short_seconds::kDroppedBits - 1))) >> short_seconds::kDroppedBits;
  if (rounded <= short_seconds::kFirst) return 0;
  return static_cast<std::uint16_t>(
      std::min<std::uint64_t>(rounded - short_seconds::kFirst, short_seconds::kMax));
}

[[nodiscard]] inline float decode_seconds(std::uint16_t code) {
  if (code == 0) return 0;
  return std::bit_cast<float>((code + short_seconds::kFirst) << short_seconds::kDroppedBits);
}

}  // namespace thinreduce
