// Elementwise loops over float32. No FMA and no reordering anywhere: results do not depend on the
// vector width. Spans of one call have the same length and any alignment.
#pragma once

#include <cstddef>
#include <span>

namespace thinreduce::kernels {

// sum[i] += in[i]
void add(std::span<float> sum, std::span<const float> in);
// sum[i] = (sum[i] + in[i]) * scale
void add_scale(std::span<float> sum, std::span<const float> in, float scale);
// values[i] *= scale
void scale(std::span<float> values, float scale);
// most[i] = max(most[i], in[i]); no NaN
void maximum(std::span<float> most, std::span<const float> in);
// Index of the first NaN or Inf; values.size() when there is none.
[[nodiscard]] std::size_t first_nonfinite(std::span<const float> values);

// add_scale, and the index of the first NaN or Inf that was in `sum` before.
[[nodiscard]] std::size_t add_scale_checked(std::span<float> sum, std::span<const float> in,
                                            float scale);

// What defines the results above.
namespace reference {
void add(std::span<float> sum, std::span<const float> in);
void add_scale(std::span<float> sum, std::span<const float> in, float scale);
void scale(std::span<float> values, float scale);
void maximum(std::span<float> most, std::span<const float> in);
[[nodiscard]] std::size_t first_nonfinite(std::span<const float> values);
[[nodiscard]] std::size_t add_scale_checked(std::span<float> sum, std::span<const float> in,
                                            float scale);
}  // namespace reference

}  // namespace thinreduce::kernels
