#include "thinreduce/methods/dqsg.h"

#include <algorithm>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/collective/shared_loops.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/gather_or_owner.h"
#include "thinreduce/methods/quantize/dithered_sum.h"
#include "thinreduce/methods/quantize/options.h"
#include "thinreduce/methods/quantize/quantized_gather.h"
#include "thinreduce/methods/quantize/stream_keys.h"

namespace thinreduce {
namespace {

struct DqsgOptions {
  BlockQuantizer quantizer;
  SumOptions sum;  // how the codes travel
  double clip = 0;
  bool feedback = false;
  std::uint64_t seed = 0;
};

// The ranks agree on scales first, so that codes add as integers.
class DqsgSum final : public Method {
 public:
  explicit DqsgSum(const DqsgOptions& options)
      : options_(options), scales_(options.quantizer.blocks()) {
    if (keeps_residual()) residual_.resize(options_.quantizer.elements());
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == options_.quantizer.elements(),
           "dqsg: the bucket must keep its size", bucket.values.size(),
           options_.quantizer.elements());
    if (bucket.values.empty()) return;
    Original* const original = exchange.keep_in_parts();
    std::span<const float> source = bucket.values;
    if (keeps_residual()) {
      exchange.timed(Stage::encode, [&] { add(exchange.workers, residual_, bucket.values); });
      source = residual_;
    }
    agree_on_scales(source, exchange);
    stream_keys(options_.seed, exchange.id(), exchange.size(), keys_);
    DitheredSum sum({.quantizer = options_.quantizer,
                     .source = source,
                     .mean = bucket.values,
                     .scales = scales_,
                     .measure = measures_while_encoding(exchange),
                     .clip = options_.clip,
                     .keys = keys_,
                     .rank = exchange.rank(),
                     .workers = exchange.workers,
                     .original = original},
                    buffers_);
    all_reduce(exchange, sum, options_.sum);
    // The codes are delivered; until here the residual still held all of the gradient.
    exchange.timed(Stage::encode, [&] { keep_unsent(sum, exchange.workers); });
  }

  void add_residual(std::span<float> values) override {
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void state(Archive& archive) override {
    if (keeps_residual()) archive.summed("residual", residual_);
  }

 private:
  [[nodiscard]] bool keeps_residual() const { return options_.feedback || options_.clip > 0; }

  // A single rank needs no agreement. Its gradient is finite; with a residual it may overflow.
  [[nodiscard]] bool measures_while_encoding(const Exchange& exchange) const {
    return exchange.size() == 1 && !keeps_residual() &&
           DitheredSum::measures_units(options_.quantizer);
  }

  // Sets `scales_` to the largest magnitude of each block over all ranks.
  void agree_on_scales(std::span<const float> source, Exchange& exchange) {
    if (measures_while_encoding(exchange)) {
      max_floats(exchange, scales_);  // one rank: nothing but counts their bytes
      return;
    }
    exchange.timed(Stage::encode, [&] {
      options_.quantizer.share_blocks(
          exchange.workers, [&](std::size_t first, std::size_t count, std::size_t /*thread*/) {
            options_.quantizer.measure(source.subspan(first, count), first, options_.clip, scales_);
          });
    });
    agree_on_maxima(exchange, scales_, own_scales_, "block");
  }

  // Keeps the whole error with feedback, otherwise the clipped part.
  void keep_unsent(DitheredSum& sum, Workers workers) {
    if (options_.feedback) {
      sum.subtract_own(residual_);
    } else if (options_.clip > 0) {
      options_.quantizer.keep_clipped(residual_, scales_, workers);
    }
  }

  DqsgOptions options_;
  std::vector<float> residual_;
  std::vector<float> scales_;      // per block
  std::vector<float> own_scales_;  // scales of this rank, before the agreement
  std::vector<RandomKey> keys_;    // by rank
  DitheredSumBuffers buffers_;
};

}  // namespace

MethodInfo dqsg_info() {
  MethodInfo info;
  info.name = "dqsg";
  info.wire_id = 5;
  info.algebra = Algebra::integer_sum;
  info.summary =
      "Rounds to a few levels with a random dither that every rank can replay and that is "
      "subtracted "
      "after decoding; the codes of all ranks add up as integers.";
  info.paper = "Abdi and Fekri 2019, Nested Dithered Quantization for Communication Reduction";
  info.options = {
      OptionInfo::integer(
          "levels", 7, 3, 255,
          "Total number of quantization levels; must be odd: zero, and as many above "
          "as below it. (ndqsg counts the levels on one side.)"),
      block_option(512),
      OptionInfo::choice(
          "collective", "auto", {"auto", "ring", "gather", "root", "owner"},
          "auto: with at most 4 ranks the codes are summed, in a ring or by owners, whichever is "
          "faster on the link; with more ranks, owner, or gather if the bucket is small. ring: the "
          "ranks agree on scales, and the codes are summed in a ring. gather: every rank sends its "
          "payload to all others. root: every rank sends its payload to rank 0, which sends the "
          "mean back. owner: every rank sends its codes to the owners of their elements, each of "
          "which sends the mean of its range to all.")
          .formerly("travel")
          .formerly_value("sum", "ring")
          .formerly_value("server", "root"),
      answer_levels_option(kDitheredAnswerLevels),
      entropy_option("Used only with collective=gather, root or owner. "),
      feedback_option(),
      clip_option(0,
                  "the clipped part is added to the next step's gradient, even with feedback=off"),
  };
  info.presets = {
      {"paper", "levels=3,block=layer,collective=gather",
       "Uses 3 levels and one scale per tensor, and sends every payload to every rank."}};
  info.check = [](const Options& options) {
    require_odd("dqsg", "levels", options.integer("levels"));
    check_answer_levels("dqsg", options);
  };
  info.make = [](const Options& options, const MethodSetup& setup) -> std::unique_ptr<Method> {
    const auto levels_per_side = static_cast<std::uint32_t>((options.integer("levels") - 1) / 2);
    check_quantizer("dqsg", setup, levels_per_side);
    const BlockQuantizer quantizer = block_quantizer(options, setup, levels_per_side);
    using Collective = QuantizedGatherOptions::Collective;
    const std::string& collective = options.text("collective");
    // The ranks replay the dither of all N in a sum of codes, and its codes grow with N.
    if (collective == "ring" || (collective == "auto" && setup.world <= kMaxRanksToGather)) {
      SumOptions sum;
      if (collective == "ring") sum.by = SumBy::ring;
      return std::make_unique<DqsgSum>(DqsgOptions{.quantizer = quantizer,
                                                   .sum = sum,
                                                   .clip = options.number("clip"),
                                                   .feedback = options.on("feedback"),
                                                   .seed = setup.seed});
    }
    return make_quantized_gather(
        {.name = "dqsg",
         .quantizer = quantizer,
         .collective = collective == "root"              ? Collective::root
                       : codes_by_owners(options, setup) ? Collective::owner
                                                         : Collective::gather,
         .clip = options.number("clip"),
         .feedback = options.on("feedback"),
         .entropy = options.on("entropy"),
         .seed = setup.seed,
         .answer_levels_per_side =
             answer_levels_per_side(options, kDitheredAnswerLevels, setup.world)});
  };
  return info;
}

}  // namespace thinreduce
