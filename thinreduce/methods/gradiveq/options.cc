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
  if (settings.basis_size > 0 || settings.energy > 0) return kMax / 5;
  return std::min(kMax, kFraction / settings.ratio);
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
  if (first) return warmup + collect;
  // One more step delivers the residuals. They must not enter the mean of the samples, which would
  // add them again in every compressed step.
  return (feedback ? 1 : 0) + collect;
}

GradiveqSettings gradiveq_settings(const Options& options) {
  GradiveqSettings settings;
  if (options.text("slice") != "auto") settings.slice = whole_number(options, "slice");
  settings.layout = options.text("layout");
  if (options.text("basis") != "auto") settings.basis_size = whole_number(options, "basis");
  if (options.text("energy") != "off") settings.energy = options.number("energy");
  settings.ratio = options.number("ratio");
  if (settings.basis_size > 0 && settings.energy > 0) {
    refuse(fmt::format(": basis and energy exclude each other (got basis={}, energy={}); give one",
                       settings.basis_size, settings.energy));
  }
  if (settings.slice > 0 && settings.basis_size > settings.slice) {
    refuse(
        fmt::format(": basis must be at most slice (got basis={}, slice={}); lower basis or "
                    "raise slice",
                    settings.basis_size, settings.slice));
  }
  settings.phases = options.text("sampling") == "phases";
  settings.warmup = whole_number(options, "warmup");
  settings.collect = whole_number(options, "collect");
  settings.interval = settings.phases ? 400 : 100;
  if (options.text("interval") != "auto") settings.interval = whole_number(options, "interval");
  settings.sample = options.number("sample");
  settings.flush = options.text("flush") == "auto" ? auto_flush(settings) : options.number("flush");
  settings.trigger = options.text("trigger") == "off" ? 0 : options.number("trigger");
  settings.feedback = options.on("feedback");
  return settings;
}

ProjectionQuantizer projection_quantizer(const InnerMethod& inner, bool feedback) {
  const Options& given = inner.options;
  if (given.on("feedback")) {
    refuse(
        fmt::format("+{}: {} must not have feedback=on: the feedback of gradiveq covers the "
                    "errors of {}",
                    inner.name, inner.name, inner.name));
  }
  ProjectionQuantizer quantizer;
  QuantizedGatherOptions& options = quantizer.options;
  options.name = inner.name;
  options.quantizer.grid = {0, block_elements(given)};
  options.entropy = given.on("entropy");
  const std::string& collective = given.text("collective");
  if (collective == "root" || collective == "owner") {
    refuse(fmt::format("+{}: collective must be {}gather, not {}", inner.name,
                       inner.name == "dqsg" ? "auto, ring or " : "auto or ", collective));
  }
  if (inner.name == "qsgd") {
    options.quantizer.levels_per_side = (1u << (given.integer("bits") - 1)) - 1;
    options.scale = QuantizedGatherOptions::Scale::norm;
    options.rounding = QuantizedGatherOptions::Rounding::stochastic;
    return quantizer;
  }
  ensure(inner.name == "dqsg", "gradiveq composes with qsgd and dqsg only");
  options.quantizer.levels_per_side = static_cast<std::uint32_t>((given.integer("levels") - 1) / 2);
  options.clip = given.number("clip");
  if (options.clip > 0 && !feedback) {
    refuse("+dqsg: clip needs gradiveq's feedback=on: clipped values would be lost");
  }
  quantizer.summed = collective != "gather";
  if (collective == "ring") quantizer.sum.by = SumBy::ring;
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
          "ignored when basis or energy is given."),
      OptionInfo::integer("basis", 32, 1, 4096,
                          "Floats sent per slice; auto: as many as ratio allows.")
          .or_else("auto")
          .formerly("rank"),
      OptionInfo::number("energy", 0.99, 0.01, 1,
                         "Sends the fewest floats per slice that keep this fraction of the sampled "
                         "slices' energy (sum of squares); off: ratio or basis decides.")
          .or_else("off"),
      OptionInfo::choice(
          "layout", "auto", {"auto", "paper", "channel", "row"},
          "Order of a tensor's dimensions before it is cut into slices; elements along "
          "the last one become neighbours. paper: height, width, in, out. channel: "
          "out, height, width, in. row: as stored. auto: per tensor, the order that "
          "loses least."),
      OptionInfo::choice("sampling", "running", {"running", "phases"},
                         "How bases are learned. running: a few slices are sent uncompressed in "
                         "every step. phases: whole steps are uncompressed, as in the paper.")
          .for_paper(),
      OptionInfo::integer("warmup", 4, 0, kManySteps, "Uncompressed steps at the start."),
      OptionInfo::integer(
          "collect", 100, 1, kManySteps,
          "With sampling=phases: uncompressed steps before each new basis; otherwise ignored.")
          .for_paper(),
      OptionInfo::integer(
          "interval", 100, 1, kManySteps,
          "Compressed steps until a tensor gets a new basis; auto: 100, or 400 with "
          "sampling=phases.")
          .or_else("auto"),
      OptionInfo::number(
          "sample", 0.004, 0, 0.5,
          "With sampling=running: fraction of the slices that is sent uncompressed per "
          "step to learn the next basis; otherwise ignored."),
      OptionInfo::number("flush", 0.02, 0, 0.5,
                         "With sampling=running: fraction of the slices that is sent uncompressed "
                         "per step, together with their residual; the slices take turns. auto: "
                         "min(0.02, 0.16/ratio), or 0.004 when basis or energy is given; a fifth "
                         "of that in a spec with a quantizer. Ignored with sampling=phases.")
          .or_else("auto"),
      OptionInfo::number("trigger", 0.5, 0.001, 1,
                         "A rank that loses more than this fraction of its gradient's energy votes "
                         "for a new basis; if most ranks vote, the tensor gets it early. off: no "
                         "votes.")
          .or_word("off"),
      OptionInfo::on_off(
          "feedback", true,
          "on: the part of the gradient that was not sent is kept and sent later (error "
          "feedback). off: it is discarded."),
  };
  info.presets = {
      {"paper",
       "sampling=phases,layout=paper,warmup=2500,collect=100,interval=400,energy=0.99,feedback=off",
       "99 % of the energy; 100 of 500 steps are uncompressed."}};
  info.check = [](const Options& options) { (void)gradiveq_settings(options); };
  info.make = [](const Options& options, const MethodSetup& setup) {
    return make_gradiveq(gradiveq_settings(options), setup);
  };
  info.composes_with = {"qsgd", "dqsg"};
  info.check_composed = [](const Options& options, const InnerMethod& inner) {
    (void)projection_quantizer(inner, options.on("feedback"));
  };
  info.make_composed = [](const Options& options, const InnerMethod& inner,
                          const MethodSetup& setup) {
    auto settings = gradiveq_settings(options);
    // Slices sent whole are not quantized, so they would be most of the payload.
    if (options.text("flush") == "auto") settings.flush /= 5;
    settings.quantizer = projection_quantizer(inner, settings.feedback);
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
