// The inner loop of variance-based compression: sums each element's gradients until the sum stands
// out against the squares of its samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinreduce/kernels/select.h"

namespace thinreduce::kernels {

// Decides whether a sum r, whose samples' squares add up to v, is unambiguous: r^2 > alpha * v and
// |r| > tau.
struct DelayRule {
  float alpha = 1.5F;
  float tau = 0;
  float zeta = 0.999F;      // decay factor of v per step
  float square_weight = 1;  // without second moments, v grows by square_weight * g^2
};

// Upper bound of v, so that alpha * v stays finite and a sum that overflows is unambiguous.
inline constexpr float kMaxSquares = 0x1p120F;

// A run of elements with their state.
struct DelayedRun {
  std::span<const float> gradient;
  std::span<const float> second_moment;  // or empty
  std::span<float> sums;                 // r
  std::span<float> squares;              // v
  std::uint32_t first = 0;               // index of the first element
};

// For every element: r += g; v += second moment, or square_weight * g^2 without one. Appends index
// and r of unambiguous elements to `out`, which must have room for the whole run; for the others,
// v *= zeta. Returns the number of elements written.
[[nodiscard]] std::size_t delay(const DelayedRun& run, const DelayRule& rule, Candidates out);

// The scalar definition of the function above.
namespace reference {
[[nodiscard]] std::size_t delay(const DelayedRun& run, const DelayRule& rule, Candidates out);
}  // namespace reference

}  // namespace thinreduce::kernels
