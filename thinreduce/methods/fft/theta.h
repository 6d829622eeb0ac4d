// Theta, the fraction of the spectrum that is dropped, over the steps of a training run.
#pragma once

#include <cstdint>
#include <string>

namespace thinreduce {

// A function of the step alone, so all ranks compute the same theta.
struct ThetaSchedule {
  enum class Kind { constant, linear, cosine, step };  // step: piecewise constant

  Kind kind = Kind::constant;
  double start = 0.85;
  double end = 0;               // theta from step `steps` on
  std::uint64_t steps = 10000;  // length of the schedule

  [[nodiscard]] double at(std::uint64_t step) const;
  // Returns the kind with the name that specs use.
  [[nodiscard]] static Kind kind_named(const std::string& name);
};

// theta=auto: drops as much as possible while the kept frequencies hold enough energy. All ranks
// pass the same kept fraction, so they compute the same theta.
class ThetaControl {
 public:
  // Theta never exceeds `start`.
  ThetaControl(double start, double min_energy)
      : start_(start), min_energy_(min_energy), theta_(start) {}

  [[nodiscard]] double theta() const { return theta_; }
  [[nodiscard]] double max_theta() const { return start_; }
  void set_theta(double theta) { theta_ = theta; }
  void update(double kept_energy);

 private:
  double start_;
  double min_energy_;
  double theta_;
};

}  // namespace thinreduce
