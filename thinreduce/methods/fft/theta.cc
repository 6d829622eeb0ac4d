#include "thinreduce/methods/fft/theta.h"

#include <algorithm>

#include "thinreduce/kernels/trigonometry.h"

namespace thinreduce {
namespace {

// Kind::step cuts the schedule into this many plateaus.
constexpr std::uint64_t kPlateaus = 4;
// The cosine's turn has this many parts: fine enough, and a power of two as kernels::turn() needs.
constexpr std::size_t kParts = 1u << 20;
constexpr double kHalfTurn = kParts / 2.0;

// Factors of the kept fraction per step: up fast, because dropping too much hurts accuracy soon;
// down slowly, because keeping too much only costs bytes.
constexpr double kMoreKept = 1.25;
constexpr double kLessKept = 0.98;
// Energy that exceeds the minimum by this much is more than needed.
constexpr double kSpareEnergy = 0.05;

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
  if (kept_energy < min_energy_) {
    theta_ = std::max(0.0, 1 - (1 - theta_) * kMoreKept);
  } else if (kept_energy > min_energy_ + kSpareEnergy) {
    theta_ = std::min(start_, 1 - (1 - theta_) * kLessKept);
  }
}

}  // namespace thinreduce
