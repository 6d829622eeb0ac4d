#include "thinreduce/methods/fft/theta.h"

#include <algorithm>

#include "thinreduce/methods/fft/trigonometry.h"

namespace thinreduce {
namespace {

// A run is cut into this many plateaus by Kind::step.
constexpr std::uint64_t kPlateaus = 4;
// The turn of the cosine is cut into this many parts: finer than anybody could see, and a power of
// two, so that every rank has the same bits.
constexpr std::size_t kParts = 1u << 20;
constexpr double kHalfTurn = kParts / 2.0;

// Down fast, because what is dropped now is felt soon; up slowly, because it is only dearer.
constexpr double kMoreKept = 1.25;
constexpr double kLessKept = 0.98;
// Energy above the bound by this much is more than is needed.
constexpr double kMargin = 0.05;

}  // namespace

double ThetaSchedule::at(std::uint64_t step) const {
  if (kind == Kind::constant) return start;
  if (step >= steps) return end;
  const double way = static_cast<double>(step) / static_cast<double>(steps);
  switch (kind) {
    case Kind::linear:
      return start + (end - start) * way;
    case Kind::cosine: {
      const auto part = static_cast<std::size_t>(way * kHalfTurn);
      return end + (start - end) * (1 + kernels::turn(part, kParts).cos) / 2;
    }
    case Kind::step: {
      const auto plateau = static_cast<double>(static_cast<std::uint64_t>(way * kPlateaus));
      return start + (end - start) * plateau / kPlateaus;
    }
    default:
      return start;
  }
}

ThetaSchedule::Kind ThetaSchedule::kind_named(const std::string& name) {
  if (name == "linear") return Kind::linear;
  if (name == "cosine") return Kind::cosine;
  if (name == "step") return Kind::step;
  return Kind::constant;
}

void ThetaControl::update(double kept_energy) {
  if (kept_energy < least_energy_) {
    theta_ = std::max(0.0, 1 - (1 - theta_) * kMoreKept);
  } else if (kept_energy > least_energy_ + kMargin) {
    theta_ = std::min(start_, 1 - (1 - theta_) * kLessKept);
  }
}

}  // namespace thinreduce
