// Elementwise loops over float32. No FMA and no reordering: results do not depend on the vector
// width. The spans of one call must have the same length; any alignment is allowed.
#pragma once

#include <cstddef>
#include <span>

namespace thinreduce::kernels {

// sum[i] += in[i]
void add(std::span<float> sum, std::span<const float> in);
// sum[i] += in[i], and in[i] becomes the old sum[i]. Returns whether all sums are finite.
[[nodiscard]] bool add_exchange(std::span<float> sum, std::span<float> in);
// sum[i] = (sum[i] + in[i]) * scale
void add_scale(std::span<float> sum, std::span<const float> in, float scale);
// values[i] *= scale
void scale(std::span<float> values, float scale);
// maxima[i] = max(maxima[i], in[i]); there must be no NaN
void maximum(std::span<float> maxima, std::span<const float> in);
// Returns the largest magnitude, ignoring NaN; 0 if there is none.
[[nodiscard]] float largest_magnitude(std::span<const float> values);
// Returns the index of the first NaN or Inf; values.size() if there is none.
[[nodiscard]] std::size_t first_nonfinite(std::span<const float> values);
// Returns the index of the first value that cannot be a sum of squares: negative, NaN or Inf;
// values.size() if there is none.
[[nodiscard]] std::size_t first_no_square(std::span<const float> values);
// Returns the sum of squares, in double: value i is added to sum i % 8, and the eight sums in
// order.
[[nodiscard]] double square_sum(std::span<const float> values);

// The definition of the results above.
namespace reference {
void add(std::span<float> sum, std::span<const float> in);
[[nodiscard]] bool add_exchange(std::span<float> sum, std::span<float> in);
void add_scale(std::span<float> sum, std::span<const float> in, float scale);
void scale(std::span<float> values, float scale);
void maximum(std::span<float> maxima, std::span<const float> in);
[[nodiscard]] float largest_magnitude(std::span<const float> values);
[[nodiscard]] std::size_t first_nonfinite(std::span<const float> values);
[[nodiscard]] std::size_t first_no_square(std::span<const float> values);
[[nodiscard]] double square_sum(std::span<const float> values);
}  // namespace reference

}  // namespace thinreduce::kernels
