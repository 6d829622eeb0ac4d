// The options of variance-based compression.
#pragma once

#include <vector>

#include "thinreduce/method/bucket.h"
#include "thinreduce/method/options.h"
#include "thinreduce/methods/variance/delay.h"
#include "thinreduce/methods/variance/payload.h"

namespace thinreduce {

struct VarianceOptions {
  kernels::DelayRule rule;
  VarianceFormat format;
  bool keep = true;  // keep the rounding error of a sent sum
  double full = 0;   // (output, input) channel pairs from which on a tensor uses the full alpha

  explicit VarianceOptions(const Options& options);

  // Returns the alpha of a tensor. Narrow tensors use a smaller one: delaying their elements hurts
  // more, since a convolution's weight is used at every position of its input.
  [[nodiscard]] float alpha_of(const Tensor& tensor) const;
};

[[nodiscard]] std::vector<OptionInfo> variance_option_infos();

}  // namespace thinreduce
