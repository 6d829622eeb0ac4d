// Learning rate by step.
#pragma once

#include <cstdint>
#include <string>

namespace thinreduce::train {

// `kind`:
//   constant
//   step      divided by 10 after a half and after three quarters of the run
//   cosine    from the peak to 0 along half a cosine
//   onecycle  up from peak/25 in the first quarter of the run, then down to almost 0, along cosines
struct Schedule {
  std::string kind = "onecycle";
  double peak = 0.1;
  std::uint64_t steps = 1;  // of the whole run

  // Step 0 is the first. Throws Error{bad_input} for a kind that does not exist.
  [[nodiscard]] double at(std::uint64_t step) const;
};

}  // namespace thinreduce::train
