// GradiVeQ's options.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "thinreduce/ensure.h"
#include "thinreduce/methods/gradiveq/gradiveq.h"
#include "thinreduce/methods/quantize/options.h"

namespace thinreduce {
namespace {

// Slices sent with their residual take 16 % of the floats of a step: at ratio 8 the turn of a slice
// comes every 50 steps. A residual that is delivered later is of little use: a training run in
// which the turn came every 250 steps lost two points of accuracy.
double auto_flush(const GradiveqSettings& settings) {
  constexpr double kFraction = 0.16;
  constexpr double kMax = 0.02;
  return settings.energy > 0 ? kMax / 5 : std::min(kMax, kFraction / settings.ratio);
}

std::uint64_t whole_number(const Options& options, const char* name) {
  return static_cast<std::uint64_t>(options.integer(name));
}

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::bad_spec, "gradiveq" + why);
}

}  // namespace

std::uint64_t GradiveqSettings::uncompressed_steps(bool first) const {
  if (!phases) return std::max<std::uint64_t>(1, warmup);
  return (first ? warmup : 0) + collect;
}

GradiveqSettings gradiveq_settings(const Options& options) {
  GradiveqSettings settings;
  if (options.text("slice") != "auto") settings.slice = whole_number(options, "slice");
  settings.layout = options.text("layout");
  if (options.text("energy") != "off") settings.energy = options.number("energy");
  settings.ratio = options.number("ratio");
  settings.phases = options.text("sampling") == "phases";
  settings.warmup = whole_number(options, "warmup");
  settings.collect = whole_number(options, "collect");
  settings.interval = settings.phases ? 400 : 100;
  if (options.text("interval") != "auto") settings.interval = whole_number(options, "interval");
  settings.flush = options.text("flush") == "auto" ? auto_flush(settings) : options.number("flush");
  settings.feedback = options.on("feedback");
  if (settings.phases && settings.feedback) {
    refuse(": sampling=phases has no error feedback; add feedback=off");
  }
  return settings;
}

QuantizedGatherOptions projection_quantizer(const InnerMethod& inner) {
  const Options& given = inner.options;
  if (given.on("feedback")) {
    refuse(fmt::format(
        "+{}: {} must not have feedback=on; leave it out: gradiveq's own feedback covers "
        "the errors of {}",
        inner.name, inner.name, inner.name));
  }
  QuantizedGatherOptions quantizer;
  quantizer.name = inner.name;
  quantizer.quantizer.grid = {0, block_elements(given)};
  quantizer.entropy = given.on("entropy");
  const std::string& collective = given.text("collective");
  const bool dithered = inner.name == "dqsg";
  if (collective != "auto" && (dithered || collective != "gather")) {
    refuse(fmt::format("+{}: collective must be auto{} (got {}); leave it out", inner.name,
                       dithered ? "" : " or gather", collective));
  }
  if (dithered) {
    const auto levels = static_cast<std::uint32_t>(given.integer("levels"));
    quantizer.quantizer.levels_per_side = (levels - 1) / 2;
    if (const double clip = given.number("clip"); clip > 0) {
      refuse(fmt::format("+dqsg: clip must be 0 (got {}); leave it out", clip));
    }
    return quantizer;
  }
  ensure(inner.name == "qsgd", "gradiveq composes with qsgd and dqsg only",
         std::string_view(inner.name));
  quantizer.quantizer.levels_per_side = (1u << (given.integer("bits") - 1)) - 1;
  quantizer.scale = QuantizedGatherOptions::Scale::norm;
  quantizer.rounding = QuantizedGatherOptions::Rounding::stochastic;
  return quantizer;
}

MethodInfo gradiveq_info() {
  constexpr long long kManySteps = std::numeric_limits<std::int32_t>::max();
  MethodInfo info;
  info.name = "gradiveq";
  info.wire_id = 4;
  info.algebra = Algebra::sum;
  info.summary =
      "Projects slices of each tensor onto the directions in which they vary most (PCA); the "
      "projections are summed.";
  info.paper =
      "Yu et al. 2018, GradiVeQ: Vector Quantization for Bandwidth-Efficient Gradient "
      "Aggregation in Distributed CNN Training";
  info.options = {
      OptionInfo::integer("slice", 256, 2, 4096,
                          "Floats per slice, the run of neighbouring elements that is projected; "
                          "auto: from the tensor's shape, at most 256.")
          .or_else("auto"),
      OptionInfo::number(
          "ratio", 8, 1, 4096,
          "Compression ratio: input floats per float sent, including slices sent uncompressed; "
          "ignored when energy is given."),
      OptionInfo::number("energy", 0.99, 0.01, 1,
                         "Sends the fewest floats per slice that keep this fraction of the sampled "
                         "slices' energy (sum of squares); off: ratio decides.")
          .or_else("off"),
      OptionInfo::choice(
          "layout", "auto", {"auto", "paper", "channel", "row"},
          "Order of a tensor's dimensions before it is cut into slices; elements along "
          "the last one become neighbours. paper: height, width, in, out. channel: "
          "out, height, width, in. row: as stored. auto: per tensor, the order that "
          "loses least."),
      OptionInfo::choice("sampling", "running", {"running", "phases"},
                         "How bases are learned. running: a few slices are sent uncompressed in "
                         "every step. phases: whole steps are uncompressed, as in the paper; "
                         "feedback must be off.")
          .for_paper(),
      OptionInfo::integer("warmup", 4, 0, kManySteps,
                          "Uncompressed steps at the start. With sampling=running, 0 counts as 1."),
      OptionInfo::integer(
          "collect", 100, 1, kManySteps,
          "With sampling=phases: uncompressed steps before each new basis; otherwise ignored.")
          .for_paper(),
      OptionInfo::integer(
          "interval", 100, 1, kManySteps,
          "Compressed steps until a tensor gets a new basis; auto: 100, or 400 with "
          "sampling=phases.")
          .or_else("auto"),
      OptionInfo::number("flush", 0.02, 0, 0.5,
                         "With sampling=running: fraction of the slices that is sent uncompressed "
                         "per step, together with their residual; the slices take turns. auto: "
                         "min(0.02, 0.16/ratio), or 0.004 when energy is given; a fifth "
                         "of that in a spec with a quantizer. Ignored with sampling=phases.")
          .or_else("auto"),
      OptionInfo::on_off(
          "feedback", true,
          "on: the part of the gradient that was not sent is kept and sent later (error "
          "feedback). off: it is discarded."),
  };
  info.presets = {
      {"paper",
       "sampling=phases,layout=paper,warmup=2500,collect=100,interval=400,energy=0.99,feedback=off",
       "Keeps 99 % of the energy; 100 of 500 steps are uncompressed."}};
  info.check = [](const Options& options) { (void)gradiveq_settings(options); };
  info.make = [](const Options& options, const MethodSetup& setup) {
    return make_gradiveq(gradiveq_settings(options), setup);
  };
  info.composes_with = {"qsgd", "dqsg"};
  info.check_composed = [](const Options& /*options*/, const InnerMethod& inner) {
    (void)projection_quantizer(inner);
  };
  info.make_composed = [](const Options& options, const InnerMethod& inner,
                          const MethodSetup& setup) {
    auto settings = gradiveq_settings(options);
    // Slices sent whole are not quantized, so they would be most of the payload.
    if (options.text("flush") == "auto") settings.flush /= 5;
    settings.quantizer = projection_quantizer(inner);
    return make_gradiveq(settings, setup);
  };
  info.cycle = [](const Options& options) {
    const auto settings = gradiveq_settings(options);
    return Cycle{settings.uncompressed_steps(true),
                 settings.interval + (settings.phases ? settings.uncompressed_steps(false) : 0)};
  };
  return info;
}

}  // namespace thinreduce
