// Normalised squared error: the squared error divided by the squared truth.
#pragma once

#include <cstddef>
#include <span>

namespace thinreduce::apps {

struct Distortion {
  double error = 0;
  double energy = 0;

  void add(double result, double truth) {
    error += (result - truth) * (result - truth);
    energy += truth * truth;
  }
  void add(const Distortion& other) {
    error += other.error;
    energy += other.energy;
  }
  [[nodiscard]] double normalised() const { return energy > 0 ? error / energy : 0; }
};

// Both spans must have the same length.
inline double normalised_error(std::span<const float> result, std::span<const float> truth) {
  Distortion distortion;
  for (std::size_t i = 0; i < truth.size(); ++i) distortion.add(result[i], truth[i]);
  return distortion.normalised();
}

}  // namespace thinreduce::apps
