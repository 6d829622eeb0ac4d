// bfloat16: the upper 16 bits of a float32, so the same range with 8 bits of precision.
//
// Rounds to nearest, ties to even. Magnitudes from 0x1.ffp127 (3.396e38) on become Inf; every NaN
// becomes 0x7fc0. Denormals are kept. The spans of one call must have the same length.
#pragma once

#include <cstdint>
#include <span>

namespace thinreduce::kernels {

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
