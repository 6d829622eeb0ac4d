// Quantizers whose payloads are gathered, or collected by a root: every rank has steps of its own.
// dqsg, qsgd and terngrad differ in their settings only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "thinreduce/method/method.h"
#include "thinreduce/methods/quantize/block_quantizer.h"

namespace thinreduce {

struct QuantizedGatherOptions {
  // What the outermost point of a block's grid stands for.
  enum class Scale { largest, norm };
  // The same draw rounds at random either way; dithered, it is subtracted after decoding.
  enum class Rounding { dithered, stochastic };
  enum class Collective { gather, root };

  std::string name;  // of the method, for errors
  BlockQuantizer grid;
  Scale scale = Scale::largest;
  Rounding rounding = Rounding::dithered;
  Collective collective = Collective::gather;
  double clip = 0;
  bool keep_clipped = true;
  bool feedback = false;
  bool entropy = true;
  std::uint64_t seed = 0;
};

[[nodiscard]] std::unique_ptr<Method> make_quantized_gather(const QuantizedGatherOptions& options);

}  // namespace thinreduce
