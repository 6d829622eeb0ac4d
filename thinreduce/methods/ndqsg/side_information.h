// Tracks how near the side information is to the gradients, and decides whether nesting is worth
// trying and with which alpha. All ranks see the same samples, so they decide the same.
#pragma once

#include <cstdint>

namespace thinreduce {

class Archive;

// Results on the exactly sent samples of one step.
struct Trial {
  std::uint64_t samples = 0;
  std::uint64_t failures = 0;
  double square_distance = 0;  // sum of ((x - y) / step size)^2
};

struct SideInformationOptions {
  double max_failures = 0.01;  // a larger fraction of failures falls back to plain codes
  double alpha = 1;
  bool learns_alpha = false;
};

class SideInformation {
 public:
  explicit SideInformation(const SideInformationOptions& options);

  // Returns whether the next step uses nested codes.
  [[nodiscard]] bool nests() const { return plain_steps_ == 0; }
  // Returns alpha of the next step.
  [[nodiscard]] double alpha() const;

  // Must be called after each step; a step without samples was a plain one.
  void learn(const Trial& trial);

  void state(Archive& archive);
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  SideInformationOptions options_;
  // Over the last few hundred to thousand samples.
  std::uint64_t samples_ = 0;
  std::uint64_t failures_ = 0;
  double distance_ = -1;           // mean of ((x - y) / step size)^2; below 0: unknown
  std::uint64_t plain_steps_ = 0;  // plain steps before the next attempt
  std::uint64_t next_pause_ = 0;   // plain steps after the next failed attempt
};

}  // namespace thinreduce
