// Dithered quantization: a random offset (dither) is added before rounding and subtracted after
// decoding. The bits are the same on every target.
//
// The dither of element i is u = (d + 1/2)/65536 - 1/2, where d is 16 bits of draw (i/32)*16 + i%16
// of a random stream: the lower half if (i/16)%2 is 0, the upper half if it is 1. So 16 draws serve
// 32 elements, in whole vectors of 4, 8 or 16 lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinreduce/kernels/random.h"

namespace thinreduce::kernels {

// Returns d of element `index`, 0 to 65535.
[[nodiscard]] constexpr std::uint32_t dither_bits(RandomKey key, std::uint32_t index) {
  const std::uint32_t bits = random_bits(key, index / 32 * 16 + index % 16);
  return index / 16 % 2 == 0 ? bits & 0xffff : bits >> 16;
}
// Returns u of element `index`, which is exact in a float.
[[nodiscard]] constexpr float dither(RandomKey key, std::uint32_t index) {
  return static_cast<float>(dither_bits(key, index)) * (1.0f / 65536) + (1.0f / 131072 - 0.5f);
}

// A run of elements that have the same step size.
struct QuantizeRun {
  float inverse_step_size = 0;        // 0 makes all codes M, which stand for 0
  std::uint32_t levels_per_side = 1;  // M: codes are 0 to 2M, code M stands for 0
  RandomKey key;
  std::uint32_t first = 0;  // index of the first element
};

// codes[i] = M + round(clamp(values[i] * inverse_step_size, -M, M) + u(first + i)), ties to even. M
// must be at most 2^20.
void quantize(std::span<const float> values, const QuantizeRun& run,
              std::span<std::uint32_t> codes);

struct DequantizeRun {
  float step_size = 0;
  std::uint32_t zero = 0;           // the code that stands for 0: M, or the sum of the ranks' M
  std::span<const RandomKey> keys;  // streams of all ranks in the sum; empty: no dither to subtract
  std::uint32_t first = 0;
};

// values[i] = step_size * (codes[i] - zero - sum over keys of u(first + i)). The sum is computed in
// integers; |codes[i] - zero| + keys/2 must be below 2^15.
void dequantize(std::span<const std::uint32_t> codes, const DequantizeRun& run,
                std::span<float> values);

namespace reference {
void quantize(std::span<const float> values, const QuantizeRun& run,
              std::span<std::uint32_t> codes);
void dequantize(std::span<const std::uint32_t> codes, const DequantizeRun& run,
                std::span<float> values);
}  // namespace reference

}  // namespace thinreduce::kernels
