// The options of the fft method.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "thinreduce/kernels/block_transform.h"
#include "thinreduce/method/options.h"
#include "thinreduce/methods/fft/theta.h"

namespace thinreduce {

// block=auto: the length with the smallest error on recorded gradients; docs/methods/fft.md has the
// table.
inline constexpr std::size_t kBestBlock = 64;

struct FftOptions {
  ThetaSchedule schedule;
  std::optional<ThetaControl> control;  // theta=auto
  int bits = 10;
  std::optional<int> mantissa;  // empty: chosen anew in every step
  std::size_t block_length = kBestBlock;
  kernels::Transform transform = kernels::Transform::fft;
  bool feedback = true;
};

[[nodiscard]] std::vector<OptionInfo> fft_option_infos();
// Throws Error{bad_spec} when options contradict each other.
[[nodiscard]] FftOptions read_fft_options(const Options& given);

}  // namespace thinreduce
