// Quantizers whose payloads are gathered, sent to a root or to owners: every rank has its own
// scales. dqsg, qsgd and terngrad differ in their settings only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "thinreduce/method/method.h"
#include "thinreduce/methods/quantize/block_quantizer.h"

namespace thinreduce {

struct QuantizedGatherOptions {
  // The value of a block's outermost level.
  enum class Scale { largest, norm };
  // Both round with the same random draw; dithered rounding subtracts it after decoding.
  enum class Rounding { dithered, stochastic };
  enum class Collective { gather, root, owner };

  std::string name;  // name of the method, for errors
  BlockQuantizer quantizer;
  Scale scale = Scale::largest;
  Rounding rounding = Rounding::dithered;
  Collective collective = Collective::gather;
  double clip = 0;
  bool keep_clipped = true;
  bool feedback = false;
  bool entropy = true;
  std::uint64_t seed = 0;
  std::uint32_t answer_levels_per_side = 1;  // of an owner's answer

  // Returns whether a rank keeps a part of its gradient for the next step.
  [[nodiscard]] bool keeps_residual() const { return feedback || (clip > 0 && keep_clipped); }
};

[[nodiscard]] std::unique_ptr<Method> make_quantized_gather(const QuantizedGatherOptions& options);

}  // namespace thinreduce
