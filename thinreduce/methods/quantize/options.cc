#include "thinreduce/methods/quantize/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "thinreduce/error.h"
#include "thinreduce/method/limits.h"
#include "thinreduce/methods/gather_or_owner.h"

namespace thinreduce {
namespace {

// With more ranks, finer answers would cost bytes that grow with the ranks.
constexpr int kFullAnswerRanks = 16;

}  // namespace

OptionInfo block_option(long long elements) {
  return OptionInfo::integer(
             "block", elements, 1, 1 << 24,
             "Max number of consecutive elements of one tensor that share a scale (4 "
             "bytes). layer: one scale per tensor.")
      .or_word("layer")
      .formerly("bucket");
}

OptionInfo block_option() {
  OptionInfo option = block_option(1);
  option.default_value = "layer";
  return option;
}

std::size_t block_elements(const Options& options) {
  return options.text("block") == "layer" ? BlockGrid::kWholeLayer
                                          : static_cast<std::size_t>(options.integer("block"));
}

BlockQuantizer block_quantizer(const Options& options, const MethodSetup& setup,
                               std::uint32_t levels_per_side) {
  return {.grid = {setup.layout, block_elements(options)}, .levels_per_side = levels_per_side};
}

OptionInfo entropy_option(const std::string& when) {
  return OptionInfo::on_off("entropy", true,
                            when +
                                "on: codes are entropy-coded where that is shorter. off: all codes "
                                "have the same length.");
}

OptionInfo feedback_option() {
  return OptionInfo::on_off("feedback", false,
                            "on: the quantization error is added to the next step's gradient "
                            "(error feedback). off: it is discarded.");
}

OptionInfo clip_option(double value, const std::string& beyond) {
  return OptionInfo::number("clip", value, 0, 100,
                            fmt::format("Values larger than this multiple of their block's root "
                                        "mean square are clipped; {}. 0: no clipping.",
                                        beyond));
}

OptionInfo answer_levels_option(long long levels, const std::string& note) {
  return OptionInfo::integer(
             "answer_levels", levels, 3, 255,
             fmt::format(
                 "Where owners reduce (see collective): total number of quantization levels of "
                 "the means that they send; must be odd. auto: {} with {} ranks or more{}, fewer "
                 "with "
                 "fewer ranks.",
                 levels, kFullAnswerRanks, note))
      .or_else("auto");
}

std::uint32_t answer_levels_per_side(const Options& options, long long levels, int world) {
  const bool follows = options.text("answer_levels") == "auto";
  const long long total = follows ? levels : options.integer("answer_levels");
  const double ranks = follows ? std::min(world, kFullAnswerRanks) : kFullAnswerRanks;
  const double per_side = static_cast<double>(total - 1) / 2 * std::sqrt(ranks / kFullAnswerRanks);
  return static_cast<std::uint32_t>(std::max(1.0, std::round(per_side)));
}

void check_answer_levels(const std::string& method, const Options& options) {
  if (options.text("answer_levels") == "auto") return;
  require_odd(method, "answer_levels", options.integer("answer_levels"));
}

void require_odd(const std::string& method, const std::string& name, long long levels) {
  if (levels % 2 != 0) return;
  throw Error(ErrorCode::bad_spec,
              fmt::format("{}: {} must be odd, with as many above as below zero (got {}={}); use "
                          "{} or {}",
                          method, name, name, levels, levels - 1, levels + 1));
}

void check_quantizer(const std::string& method, const MethodSetup& setup,
                     std::uint32_t levels_per_side) {
  require_32bit_indices(method, setup.layout);
  // Sums of codes must fit into 16 bits, and sums of codes and dither into 32.
  const auto world = static_cast<std::uint64_t>(setup.world);
  if (world * levels_per_side + world / 2 >= 32768) {
    throw Error(ErrorCode::bad_spec,
                fmt::format("{}: {} quantization levels on each side of zero are too many for {} "
                            "ranks (at most {}); use fewer levels or fewer ranks",
                            method, levels_per_side, setup.world, (32767 - world / 2) / world));
  }
}

bool codes_by_owners(const Options& options, const MethodSetup& setup) {
  // About two bits per element, entropy coded.
  return by_owners(
      options, setup,
      {.payload_bytes = static_cast<double>(setup.layout.elements) / 4, .owner_payloads = 3.3});
}

QuantizedGatherOptions stochastic_settings(const std::string& method, const Options& options,
                                           const MethodSetup& setup,
                                           const StochasticLevels& levels) {
  check_quantizer(method, setup, levels.per_side);
  return {.name = method,
          .quantizer = block_quantizer(options, setup, levels.per_side),
          .rounding = QuantizedGatherOptions::Rounding::stochastic,
          .collective = codes_by_owners(options, setup)
                            ? QuantizedGatherOptions::Collective::owner
                            : QuantizedGatherOptions::Collective::gather,
          .feedback = options.on("feedback"),
          .entropy = options.on("entropy"),
          .seed = setup.seed,
          .answer_levels_per_side = answer_levels_per_side(options, levels.answer, setup.world)};
}

}  // namespace thinreduce
