// The nested code of one value. With t = alpha*x/step + u, a rank sends round(t) modulo ratio; who
// knows y, near x, finds x again:
//   r = (code - u)*step - alpha*y,  x' = y + alpha*(r - ratio*step*round(r/(ratio*step))).
// With z = x - y and e the error of the fine quantizer, |e| <= step/2:
//   x' - x = alpha*e - (1 - alpha^2)*z  if and only if  |alpha*z + e| < ratio*step/2,
// and otherwise it is off by a multiple of alpha*ratio*step: a failure.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace thinreduce {

struct NestedCode {
  std::uint32_t ratio = 3;  // of the coarse step to the fine one; odd or even
  double alpha = 1;

  // Reduces codes that stand for `zero` at a multiple of ratio.
  void wrap(std::span<std::uint32_t> codes) const {
    for (auto& code : codes) code %= ratio;
  }

  // x' of the comment above, from (code - u)*step. In double precision, so that nothing overflows
  // on the way, and finite.
  [[nodiscard]] float value(float fine, float y, float step) const {
    const double coarse = static_cast<double>(ratio) * step;
    const double r = fine - alpha * y;
    // Rounds to nearest below 2^51; beyond that nothing is near y anyway.
    constexpr double kRounder = 0x1.8p52;
    const double points = (r / coarse + kRounder) - kRounder;
    const double found = y + alpha * (r - coarse * points);
    constexpr double kMost = std::numeric_limits<float>::max();
    return static_cast<float>(found < -kMost ? -kMost : found > kMost ? kMost : found);
  }

  // Whether a value that was found is not the one that the identity promises.
  [[nodiscard]] bool failed(float found, float exact, float y, float step) const {
    const double z = static_cast<double>(exact) - y;
    const double fine_error = static_cast<double>(found) - exact + (1 - alpha * alpha) * z;
    return std::abs(fine_error) > alpha * ratio * step / 2;
  }

  // The alpha with the least error, alpha^2*step^2/12 + (1 - alpha^2)^2*var(z), for a given
  // var(z)/step^2. At least one half, so that a rank's own gradient always counts for something.
  [[nodiscard]] static double best_alpha(double relative_variance) {
    const double square = 1 - 1 / (24 * relative_variance);
    return square > 0.25 ? std::sqrt(square) : 0.5;
  }
};

}  // namespace thinreduce
