// What all ranks have learned about how near the side information is: whether nesting is worth
// trying, and with which alpha. It follows from what all ranks have seen alike, so all decide
// alike.
#pragma once

#include <cstdint>

namespace thinreduce {

class Archive;

// What one step's exactly sent samples told.
struct Trial {
  std::uint64_t samples = 0;
  std::uint64_t failures = 0;
  double square_distance = 0;  // sum of ((x - y)/step)^2
};

struct SideInformationOptions {
  double most_failures = 0.01;  // a larger share is a reason to step back
  double alpha = 1;
  bool learns_alpha = false;
};

class SideInformation {
 public:
  explicit SideInformation(const SideInformationOptions& options);

  // Whether the next step nests.
  [[nodiscard]] bool nests() const { return plain_steps_ == 0; }
  // Of the next step.
  [[nodiscard]] double alpha() const;

  // After each step; one without samples was a plain one.
  void learn(const Trial& trial);

  void state(Archive& archive);
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  SideInformationOptions options_;
  // Of the last few hundred to thousand samples.
  std::uint64_t samples_ = 0;
  std::uint64_t failures_ = 0;
  double distance_ = -1;           // mean of ((x - y)/step)^2; below 0: unknown
  std::uint64_t plain_steps_ = 0;  // before the next attempt
  std::uint64_t next_pause_ = 0;   // plain steps after the next failed attempt, if not the first
};

}  // namespace thinreduce
