#include "thinreduce/methods/terngrad.h"

#include "thinreduce/methods/gather_or_owner.h"
#include "thinreduce/methods/quantize/options.h"

namespace thinreduce {

MethodInfo terngrad_info() {
  MethodInfo info;
  info.name = "terngrad";
  info.wire_id = 8;
  info.algebra = Algebra::gather;
  info.summary =
      "Clips, then rounds stochastically to -1, 0 or 1 times the block's largest magnitude.";
  info.paper = "Wen et al. 2017, TernGrad: Ternary Gradients to Reduce Communication";
  info.options = {
      block_option(),
      clip_option(2.5,
                  "the clipped part is discarded, as in the paper; with feedback=on it is added to "
                  "the next step's gradient"),
      gather_or_owner_option("its codes to the owners of their elements, each of which sends the "
                             "mean of its range to all"),
      answer_levels_option(kStochasticAnswerLevels),
      entropy_option(),
      feedback_option(),
  };
  info.presets = {
      {"paper", "block=layer,clip=2.5,collective=gather",
       "Uses one scale per tensor, and clips values at 2.5 times the tensor's root mean square."}};
  info.check = [](const Options& options) { check_answer_levels("terngrad", options); };
  info.make = [](const Options& options, const MethodSetup& setup) {
    auto settings = stochastic_settings("terngrad", options, setup, {});
    settings.clip = options.number("clip");
    settings.keep_clipped = false;
    return make_quantized_gather(settings);
  };
  return info;
}

}  // namespace thinreduce
