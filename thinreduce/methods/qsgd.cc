#include "thinreduce/methods/qsgd.h"

#include "thinreduce/methods/quantize/quantized_gather.h"

namespace thinreduce {
namespace {

OptionInfo entropy_option() {
  return OptionInfo::on_off("entropy", true, "entropy coding where it pays; off: fixed length");
}
OptionInfo feedback_option() {
  return OptionInfo::on_off("feedback", false, "keep the error and add it to the next gradient");
}

QuantizedGatherOptions baseline(const std::string& name, const Options& options,
                                const MethodSetup& setup, std::uint32_t most) {
  check_quantizer(name, setup, most);
  return {.name = name,
          .grid = {.elements = setup.layout.elements,
                   .block = static_cast<std::size_t>(options.integer("block")),
                   .most = most},
          .rounding = QuantizedGatherOptions::Rounding::stochastic,
          .feedback = options.on("feedback"),
          .entropy = options.on("entropy"),
          .seed = setup.seed};
}

}  // namespace

MethodInfo qsgd_info() {
  MethodInfo info;
  info.name = "qsgd";
  info.wire_id = 7;
  info.algebra = Algebra::gather;
  info.summary = "stochastic rounding to levels of the block's 2-norm";
  info.paper = "Alistarh et al. 2017, QSGD: Communication-Efficient SGD via Gradient Quantization";
  info.options = {
      OptionInfo::integer("bits", 4, 2, 8, "of a code, its sign included: 2^bits - 1 symbols"),
      OptionInfo::integer("block", 512, 1, 1 << 24, "Elements that share one norm.")
          .formerly("bucket"),
      entropy_option(),
      feedback_option(),
  };
  info.make = [](const Options& options, const MethodSetup& setup) {
    auto settings = baseline("qsgd", options, setup, (1u << (options.integer("bits") - 1)) - 1);
    settings.scale = QuantizedGatherOptions::Scale::norm;
    return make_quantized_gather(settings);
  };
  return info;
}

MethodInfo terngrad_info() {
  MethodInfo info;
  info.name = "terngrad";
  info.wire_id = 8;
  info.algebra = Algebra::gather;
  info.summary = "stochastic rounding to -1, 0, 1 times the largest magnitude, after clipping";
  info.paper = "Wen et al. 2017, TernGrad: Ternary Gradients to Reduce Communication";
  info.options = {
      OptionInfo::integer("block", 1 << 24, 1, 1 << 24, "Elements that share one scale.")
          .formerly("bucket"),
      OptionInfo::number("clip", 2.5, 0, 100,
                         "clip at so many root mean squares of a block; 0: never"),
      entropy_option(),
      feedback_option(),
  };
  info.make = [](const Options& options, const MethodSetup& setup) {
    auto settings = baseline("terngrad", options, setup, 1);
    settings.clip = options.number("clip");
    settings.keep_clipped = false;  // as published
    return make_quantized_gather(settings);
  };
  return info;
}

}  // namespace thinreduce
