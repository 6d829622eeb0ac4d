// Decides whether nesting is worth trying in a step. All ranks see the same payloads, so they
// decide the same.
#pragma once

#include <cstdint>

namespace thinreduce {

class Archive;

class SideInformation {
 public:
  // Returns whether the next step uses nested codes.
  [[nodiscard]] bool nests() const { return plain_steps_ == 0; }

  // Must be called after each step that nested, with the fraction of the bytes of plain codes that
  // the nested ranks saved; and after each step that did not.
  void learn(double saved);
  void count_plain_step() { --plain_steps_; }

  void state(Archive& archive);
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  // Nested codes need the plain ranks' payloads first, and so a second latency: below this fraction
  // they are not worth it.
  static constexpr double kWorthwhile = 0.05;
  // Steps without nesting after a failed attempt. Gradients change slowly, so each failed attempt
  // doubles the next pause, up to a limit.
  static constexpr std::uint64_t kFirstPause = 16;
  static constexpr std::uint64_t kLongestPause = 1024;

  std::uint64_t plain_steps_ = 0;           // plain steps before the next attempt
  std::uint64_t next_pause_ = kFirstPause;  // plain steps after the next failed attempt
};

}  // namespace thinreduce
