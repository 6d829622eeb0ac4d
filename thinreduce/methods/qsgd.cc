#include "thinreduce/methods/qsgd.h"

#include <fmt/format.h>

#include "thinreduce/methods/gather_or_owner.h"
#include "thinreduce/methods/quantize/options.h"

namespace thinreduce {

MethodInfo qsgd_info() {
  MethodInfo info;
  info.name = "qsgd";
  info.wire_id = 7;
  info.algebra = Algebra::gather;
  info.summary =
      "Rounds stochastically to a few levels, which are fractions of the block's 2-norm.";
  info.paper = "Alistarh et al. 2017, QSGD: Communication-Efficient SGD via Gradient Quantization";
  info.options = {
      OptionInfo::integer("bits", 6, 2, 8,
                          "Bits per element before entropy coding, its sign included: 2^bits - 1 "
                          "levels."),
      block_option(512),
      gather_or_owner_option("its codes to the owners of their elements, each of which sends the "
                             "mean of its range to all"),
      answer_levels_option(kFineStochasticAnswerLevels,
                           fmt::format(" ({} with bits up to 4)", kStochasticAnswerLevels)),
      entropy_option(),
      feedback_option(),
  };
  info.presets = {
      {"paper", "bits=4,block=512,collective=gather",
       "Uses 4 bits per element before entropy coding, and one norm per 512 elements."}};
  info.check = [](const Options& options) { check_answer_levels("qsgd", options); };
  info.make = [](const Options& options, const MethodSetup& setup) {
    const auto levels_per_side = (1u << (options.integer("bits") - 1)) - 1;
    const auto answer =
        options.integer("bits") > 4 ? kFineStochasticAnswerLevels : kStochasticAnswerLevels;
    auto settings = stochastic_settings("qsgd", options, setup, {levels_per_side, answer});
    settings.scale = QuantizedGatherOptions::Scale::norm;
    return make_quantized_gather(settings);
  };
  return info;
}

}  // namespace thinreduce
