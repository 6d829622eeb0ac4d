// GradiVeQ's options as text.
#include <algorithm>
#include <limits>

#include "thinreduce/error.h"
#include "thinreduce/methods/gradiveq/gradiveq.h"

namespace thinreduce {
namespace {

// Of what a step may send, 16 % goes to slices with all that was held back of them: at ratio 8 each
// comes every 50 steps. A gradient that arrives later is of little use; with every 250 steps a
// training lost two points.
double natural_flush(const GradiveqSettings& settings) {
  constexpr double kShare = 0.16;
  constexpr double kMost = 0.02;
  if (settings.rule.rank > 0 || settings.rule.energy > 0) return kMost / 5;
  return std::min(kMost, kShare / settings.rule.ratio);
}

std::uint64_t whole_number(const Options& options, const char* name) {
  return static_cast<std::uint64_t>(options.integer(name));
}

}  // namespace

GradiveqSettings gradiveq_settings(const Options& options) {
  GradiveqSettings settings;
  if (options.text("slice") != "auto") settings.slice = whole_number(options, "slice");
  settings.layout = options.text("layout");
  if (options.text("basis") != "auto") settings.rule.rank = whole_number(options, "basis");
  if (options.text("energy") != "off") settings.rule.energy = options.number("energy");
  settings.rule.ratio = options.number("ratio");
  if (settings.rule.rank > 0 && settings.rule.energy > 0) {
    throw Error(ErrorCode::bad_spec,
                "gradiveq: basis and energy exclude each other; give one of them");
  }
  if (settings.slice > 0 && settings.rule.rank > settings.slice) {
    throw Error(ErrorCode::bad_spec, "gradiveq: basis must be at most slice");
  }
  auto& schedule = settings.schedule;
  schedule.phases = options.text("sampling") == "phases";
  schedule.warmup = whole_number(options, "warmup");
  schedule.collect = whole_number(options, "collect");
  schedule.interval = schedule.phases ? 400 : 100;
  if (options.text("interval") != "auto") schedule.interval = whole_number(options, "interval");
  settings.sample = options.number("sample");
  settings.flush =
      options.text("flush") == "auto" ? natural_flush(settings) : options.number("flush");
  settings.trigger = options.text("trigger") == "off" ? 0 : options.number("trigger");
  settings.feedback = options.on("feedback");
  return settings;
}

MethodInfo gradiveq_info() {
  constexpr long long kManySteps = std::numeric_limits<std::int32_t>::max();
  MethodInfo info;
  info.name = "gradiveq";
  info.wire_id = 4;
  info.algebra = Algebra::sum;
  info.summary =
      "projections of slices onto the directions in which they vary most, summed as such";
  info.paper =
      "Yu et al. 2018, GradiVeQ: Vector Quantization for Bandwidth-Efficient Gradient "
      "Aggregation in Distributed CNN Training";
  info.options = {
      OptionInfo::integer("slice", 256, 2, 4096, "floats of a slice; auto: from the shape")
          .or_else("auto"),
      OptionInfo::number("ratio", 8, 1, 4096,
                         "floats for each that is sent, whole slices included"),
      OptionInfo::integer("basis", 32, 1, 4096,
                          "Floats sent per slice; auto: as many as ratio allows.")
          .or_else("auto")
          .formerly("rank"),
      OptionInfo::number("energy", 0.99, 0.01, 1,
                         "share of the energy that bases keep, instead of ratio")
          .or_else("off"),
      OptionInfo::choice("layout", "auto", {"auto", "paper", "channel", "row"},
                         "which elements of a tensor are neighbours; auto: what loses least"),
      OptionInfo::choice("sampling", "running", {"running", "phases"},
                         "some slices whole at every step, or all in phases of their own"),
      OptionInfo::integer("warmup", 4, 0, kManySteps, "uncompressed steps at the start"),
      OptionInfo::integer("collect", 100, 1, kManySteps, "phases: uncompressed steps of a cycle"),
      OptionInfo::integer("interval", 100, 1, kManySteps,
                          "steps between bases; auto: 100, with phases 400")
          .or_else("auto"),
      OptionInfo::number("sample", 0.004, 0, 0.5, "running: share of slices sampled in a step"),
      OptionInfo::number("flush", 0.02, 0, 0.5,
                         "running: share of slices whose residual is sent whole in a step; auto: "
                         "0.16/ratio, at most 0.02, and a fifth of it when composed")
          .or_else("auto"),
      OptionInfo::number("trigger", 0.5, 0.001, 1,
                         "loss at which a rank votes for new bases; off: never")
          .or_word("off"),
      OptionInfo::on_off("feedback", true, "keep what is lost and send it later; off: forget it"),
  };
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
    // Slices that travel whole are not quantized, so they would be most of what is sent.
    if (options.text("flush") == "auto") settings.flush /= 5;
    settings.quantizer = projection_quantizer(inner, settings.feedback);
    return make_gradiveq(settings, setup);
  };
  info.cycle = [](const Options& options) {
    const auto settings = gradiveq_settings(options);
    const auto& schedule = settings.schedule;
    if (schedule.phases) {
      return Cycle{schedule.warmup + schedule.collect,
                   schedule.returning(settings.feedback) + schedule.collect + schedule.interval};
    }
    return Cycle{std::max<std::uint64_t>(1, schedule.warmup), schedule.interval};
  };
  return info;
}

}  // namespace thinreduce
