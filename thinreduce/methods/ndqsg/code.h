// The nested code of one value x. With step size s, dither u and t = alpha*x/s + u, a rank sends
// round(t) modulo ratio. A reader that knows y, which is near x, decodes
//   r = (code - u)*s - alpha*y,  x' = y + alpha*(r - ratio*s*round(r/(ratio*s))).
// With z = x - y and the error e of the fine quantizer, |e| <= s/2:
//   x' - x = alpha*e - (1 - alpha^2)*z  if and only if  |alpha*z + e| < ratio*s/2.
// Otherwise x' is off by a multiple of alpha*ratio*s: a decode failure.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace thinreduce {

struct NestedCode {
  std::uint32_t ratio = 3;  // coarse step size / fine step size
  double alpha = 1;

  // Reduces codes modulo ratio; the code of value 0 must be a multiple of ratio.
  void wrap(std::span<std::uint32_t> codes) const {
    for (auto& code : codes) code %= ratio;
  }

  // Returns x' from fine = (code - u)*step_size. Computes in double, so that nothing overflows; the
  // result is finite.
  [[nodiscard]] float value(float fine, float y, float step_size) const {
    const double coarse = static_cast<double>(ratio) * step_size;
    const double r = fine - alpha * y;
    // Rounds to the nearest integer below 2^51; beyond that nothing is near y anyway.
    constexpr double kRounder = 0x1.8p52;
    const double levels = (r / coarse + kRounder) - kRounder;
    const double found = y + alpha * (r - coarse * levels);
    constexpr double kMaxFloat = std::numeric_limits<float>::max();
    return static_cast<float>(found < -kMaxFloat  ? -kMaxFloat
                              : found > kMaxFloat ? kMaxFloat
                                                  : found);
  }

  // Returns whether `found` was decoded wrongly.
  [[nodiscard]] bool failed(float found, float exact, float y, float step_size) const {
    const double z = static_cast<double>(exact) - y;
    const double fine_error = static_cast<double>(found) - exact + (1 - alpha * alpha) * z;
    return std::abs(fine_error) > alpha * ratio * step_size / 2;
  }

  // Returns the alpha that minimizes the error alpha^2*s^2/12 + (1 - alpha^2)^2*var(z), given
  // var(z)/s^2; at least 1/2, so that a rank's own gradient always counts.
  [[nodiscard]] static double best_alpha(double relative_variance) {
    const double square = 1 - 1 / (24 * relative_variance);
    return square > 0.25 ? std::sqrt(square) : 0.5;
  }
};

}  // namespace thinreduce
