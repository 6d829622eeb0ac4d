// IEEE 754 binary16 (1 sign, 5 exponent, 10 mantissa bits), rounded to nearest even, in integer
// arithmetic: the same bits on CPUs with and without binary16. Overflow gives infinity.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

[[nodiscard]] inline std::uint16_t to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint32_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  std::uint32_t half = 0;
  if (magnitude >= 0x47800000) {  // 2^16 and more, infinity, NaN
    half = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  } else if (magnitude < 0x38800000) {  // below 2^-14, where halves are multiples of 2^-24
    // The last bit of 0.5 is worth 2^-24, so this addition rounds the value to such a multiple.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0.5f);
  } else {
    const std::uint32_t odd = magnitude >> 13 & 1;
    half = (magnitude - ((127 - 15) << 23) + 0xfff + odd) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

[[nodiscard]] inline float from_half(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  std::uint32_t bits = 0;
  if (magnitude >= 0x7c00) {  // infinity, NaN
    bits = magnitude << 13 | 0x7f800000;
  } else if (magnitude < 0x0400) {  // multiples of 2^-24
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  } else {
    bits = (magnitude << 13) + ((127 - 15) << 23);
  }
  return std::bit_cast<float>(sign | bits);
}

// halves[i] = to_half(values[i] * scale)
void to_half(std::span<const float> values, float scale, std::span<std::uint16_t> halves);
// values[i] = from_half(halves[i]) * scale
void from_half(std::span<const std::uint16_t> halves, float scale, std::span<float> values);

}  // namespace thinreduce::kernels
