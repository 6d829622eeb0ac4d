#include "apps/train/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "thinreduce/error.h"

namespace thinreduce::train {
namespace {

// Goes from `from` to `to` along half a cosine as `part` goes from 0 to 1.
double glide(double from, double to, double part) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

}  // namespace

double Schedule::at(std::uint64_t step) const {
  const double part =
      static_cast<double>(step) / static_cast<double>(std::max<std::uint64_t>(1, steps));
  if (kind == "constant") return peak;
  if (kind == "step") return part < 0.5 ? peak : part < 0.75 ? peak / 10 : peak / 100;
  if (kind == "cosine") return glide(peak, 0, part);
  if (kind == "onecycle") {
    constexpr double kRise = 0.25;
    if (part < kRise) return glide(peak / 25, peak, part / kRise);
    return glide(peak, peak / 1e4, (part - kRise) / (1 - kRise));
  }
  throw Error(
      ErrorCode::bad_input,
      fmt::format("there is no schedule '{}'; the schedules are: constant, step, cosine, onecycle",
                  kind));
}

}  // namespace thinreduce::train
