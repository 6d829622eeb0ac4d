// The loop behind variance-based compression: gradients are summed up until the sum stands out
// against the squares of the samples that it consists of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinreduce/kernels/select.h"

namespace thinreduce::kernels {

// When a sum r over samples whose squares add up to v is unambiguous.
struct DelayRule {
  float alpha = 1.5F;   // r^2 > alpha * v, and
  float tau = 0;        // |r| > tau
  float zeta = 0.999F;  // what is left of v a step later
  float share = 1;      // without a second moment: the part of g^2 that counts as one
};

// Squares are cut here, so that alpha * v stays finite and a sum that overflows stands out.
inline constexpr float kMostSquares = 0x1p120F;

// A run of elements and what they hold back.
struct DelayedRun {
  std::span<const float> gradient;
  std::span<const float> second_moment;  // or empty
  std::span<float> sums;                 // r
  std::span<float> squares;              // v
  std::uint32_t first = 0;               // index of the first element
};

// For every element: r += g; v += second moment, or share * g^2 without one. Where r is unambiguous
// now, index and r are written to `out`, which has room for the whole run; elsewhere v *= zeta.
// Returns how many were written.
[[nodiscard]] std::size_t delay(const DelayedRun& run, const DelayRule& rule, Candidates out);

// What defines the result above.
namespace reference {
[[nodiscard]] std::size_t delay(const DelayedRun& run, const DelayRule& rule, Candidates out);
}  // namespace reference

}  // namespace thinreduce::kernels
