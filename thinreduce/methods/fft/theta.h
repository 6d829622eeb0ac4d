// Theta, the share of a spectrum that is dropped, over the steps of a training run.
#pragma once

#include <cstdint>
#include <string>

namespace thinreduce {

// A function of the step alone, so all ranks agree.
struct ThetaSchedule {
  enum class Kind { constant, linear, cosine, step };

  Kind kind = Kind::constant;
  double start = 0.85;
  double end = 0;               // reached after `steps`, and kept
  std::uint64_t steps = 10000;  // how long the way is

  [[nodiscard]] double at(std::uint64_t step) const;
  // As it is spelled in a spec.
  [[nodiscard]] static Kind kind_named(const std::string& name);
};

// theta=auto: as much as possible is dropped while what is kept has enough energy. It is told the
// ranks' common share of kept energy after every step, so all ranks agree.
class ThetaControl {
 public:
  // Never above `start`.
  ThetaControl(double start, double least_energy)
      : start_(start), least_energy_(least_energy), theta_(start) {}

  [[nodiscard]] double theta() const { return theta_; }
  void set_theta(double theta) { theta_ = theta; }
  void update(double kept_energy);

 private:
  double start_;
  double least_energy_;
  double theta_;
};

}  // namespace thinreduce
