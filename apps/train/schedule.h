// Schedules of the learning rate.
#pragma once

#include <cstdint>
#include <string>

namespace thinreduce::train {

// `kind`:
//   constant
//   step      divided by 10 after one half and after three quarters of the run
//   cosine    from the peak to 0 along half a cosine
//   onecycle  up from peak/25 in the first quarter of the run, then down to peak/10^4, along
//   cosines
struct Schedule {
  std::string kind = "onecycle";
  double peak = 0.1;
  std::uint64_t steps = 1;  // of the whole run

  // Returns the learning rate of a step; steps count from 0. Throws Error{bad_input} for an unknown
  // kind.
  [[nodiscard]] double at(std::uint64_t step) const;
};

}  // namespace thinreduce::train
