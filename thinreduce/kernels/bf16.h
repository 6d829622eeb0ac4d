// bfloat16: the upper 16 bits of a float32, so the same range with 8 bits of precision.
//
// Rounds to nearest, ties to even. Magnitudes from 0x1.ffp127 (3.396e38) on become Inf; every NaN
// becomes 0x7fc0. Denormals are kept. The spans of one call must have the same length.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

// Returns one value as bfloat16. Adding just under half of the last kept place, plus one if that
// place is odd, carries into it exactly when rounding to nearest even rounds up.
[[nodiscard]] inline std::uint16_t bf16_of(float value) {
  if (value != value) return 0x7fc0;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
// Returns the value of one bfloat16.
[[nodiscard]] inline float float_of(std::uint16_t bf16) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16);
}

// out[i] = bf16(in[i])
void to_bf16(std::span<const float> in, std::span<std::uint16_t> out);
// out[i] = float(in[i]) * scale
void from_bf16(std::span<const std::uint16_t> in, float scale, std::span<float> out);
// sum[i] += float(in[i])
void add_bf16(std::span<const std::uint16_t> in, std::span<float> sum);

// The definition of the results above.
namespace reference {
void to_bf16(std::span<const float> in, std::span<std::uint16_t> out);
void from_bf16(std::span<const std::uint16_t> in, float scale, std::span<float> out);
void add_bf16(std::span<const std::uint16_t> in, std::span<float> sum);
}  // namespace reference

}  // namespace thinreduce::kernels
