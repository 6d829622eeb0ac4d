#include "thinreduce/kernels/trigonometry.h"

#include <utility>

namespace thinreduce::kernels {
namespace {

// Taylor series on [0, pi/4]. The first omitted term is below 5e-17: (pi/4)^17 / 17!.
CosSin first_octant(double x) {
  const double square = x * x;
  double sin = 0;
  for (int n = 15; n >= 3; n -= 2) sin = (1 - sin) * square / (n * (n - 1));
  double cos = 0;
  for (int n = 16; n >= 2; n -= 2) cos = (1 - cos) * square / (n * (n - 1));
  return {1 - cos, x * (1 - sin)};
}

}  // namespace

// The angle is reduced to the first octant in integers, which loses no precision.
CosSin turn(std::size_t k, std::size_t n) {
  constexpr double kPi = 3.14159265358979323846;
  k %= n;
  const bool lower_half = k > n / 2;
  if (lower_half) k = n - k;
  const bool left_half = k > n / 4;
  if (left_half) k = n / 2 - k;
  const bool upper_octant = k > n / 8;
  if (upper_octant) k = n / 4 - k;
  CosSin result = first_octant(2 * kPi * static_cast<double>(k) / static_cast<double>(n));
  if (upper_octant) std::swap(result.cos, result.sin);
  if (left_half) result.cos = -result.cos;
  if (lower_half) result.sin = -result.sin;
  return result;
}

}  // namespace thinreduce::kernels
