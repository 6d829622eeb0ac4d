#include "thinreduce/methods/dqsg.h"

#include <fmt/format.h>

#include <algorithm>

#include "thinreduce/collective/float_ring.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/quantize/dithered_ring.h"
#include "thinreduce/methods/quantize/options.h"
#include "thinreduce/methods/quantize/quantized_gather.h"
#include "thinreduce/wire/random.h"

namespace thinreduce {
namespace {

struct DqsgOptions {
  BlockQuantizer grid;
  double clip = 0;
  bool feedback = false;
  std::uint64_t seed = 0;
};

// Codes add as integers inside a ring, because the ranks agree on the steps first.
class DqsgSum final : public Method {
 public:
  explicit DqsgSum(const DqsgOptions& options)
      : options_(options), largest_(options.grid.blocks()) {
    if (keeps_residual()) residual_.resize(options_.grid.elements);
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == options_.grid.elements, "dqsg: the bucket must keep its size",
           bucket.values.size(), options_.grid.elements);
    if (bucket.values.empty()) return;
    std::span<const float> source = bucket.values;
    if (keeps_residual()) {
      exchange.timed(Stage::encode, [&] { kernels::add(residual_, bucket.values); });
      source = residual_;
    }
    agree_on_steps(source, exchange);
    make_keys(exchange);
    DitheredRing sum({.grid = options_.grid,
                      .source = source,
                      .mean = bucket.values,
                      .largest = largest_,
                      .measure = measures_while_encoding(exchange),
                      .clip = options_.clip,
                      .keys = keys_,
                      .rank = exchange.rank()},
                     buffers_);
    ring_all_reduce(exchange, sum);
    // Only now is anything delivered; until here the residual holds it.
    exchange.timed(Stage::encode, [&] { keep_the_rest(sum); });
  }

  void add_residual(std::span<float> values) override {
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void state(Archive& archive) override {
    if (keeps_residual()) archive.summed("residual", residual_);
  }

 private:
  [[nodiscard]] bool keeps_residual() const { return options_.feedback || options_.clip > 0; }

  // A single rank's gradient is finite and needs no agreement; with a residual it may overflow.
  [[nodiscard]] bool measures_while_encoding(const Exchange& exchange) const {
    return exchange.size() == 1 && !keeps_residual();
  }

  // The largest magnitude of each block over all ranks.
  void agree_on_steps(std::span<const float> source, Exchange& exchange) {
    if (measures_while_encoding(exchange)) {
      ring_max(exchange, largest_);  // one rank: nothing but counts their bytes
      return;
    }
    exchange.timed(Stage::encode,
                   [&] { options_.grid.measure(source, 0, options_.clip, largest_); });
    agree_on_maxima(exchange, largest_, own_largest_, "block");
  }

  void make_keys(const Exchange& exchange) {
    keys_.clear();
    for (int rank = 0; rank < exchange.size(); ++rank) {
      keys_.push_back(random_key({.seed = options_.seed,
                                  .step = exchange.id().step,
                                  .bucket = exchange.id().bucket,
                                  .rank = static_cast<std::uint32_t>(rank)}));
    }
  }

  // With feedback all of the error, otherwise what was clipped.
  void keep_the_rest(DitheredRing& sum) {
    if (options_.feedback) {
      sum.subtract_own(residual_);
    } else if (options_.clip > 0) {
      options_.grid.keep_clipped(residual_, largest_);
    }
  }

  DqsgOptions options_;
  std::vector<float> residual_;
  std::vector<float> largest_;      // a block
  std::vector<float> own_largest_;  // before the ranks agreed
  std::vector<RandomKey> keys_;     // a rank
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
      "after decoding; the codes of all ranks add up as integers in a ring.";
  info.paper = "Abdi and Fekri 2019, Nested Dithered Quantization for Communication Reduction";
  info.options = {
      OptionInfo::integer("levels", 7, 3, 255,
                          "Number of quantization levels; must be odd: zero, and as many above as "
                          "below it."),
      block_option(512),
      OptionInfo::choice(
          "collective", "ring", {"ring", "gather", "root"},
          "ring: the ranks agree on scales and the codes are summed in a ring. gather: every rank "
          "sends its payload to all others. root: every rank sends its payload to rank 0, which "
          "sends the mean back.")
          .formerly("travel")
          .formerly_value("sum", "ring")
          .formerly_value("server", "root"),
      entropy_option("With collective=gather or root: "),
      feedback_option(),
      clip_option(0, "the part beyond is added to the next step's gradient"),
  };
  info.check = [](const Options& options) {
    const long long levels = options.integer("levels");
    if (levels % 2 == 0) {
      throw Error(ErrorCode::bad_spec,
                  fmt::format("dqsg: levels must be odd, with as many above as below zero (got "
                              "levels={}); use {} or {}",
                              levels, levels - 1, levels + 1));
    }
  };
  info.make = [](const Options& options, const MethodSetup& setup) -> std::unique_ptr<Method> {
    const auto most = static_cast<std::uint32_t>((options.integer("levels") - 1) / 2);
    check_quantizer("dqsg", setup, most);
    const BlockQuantizer grid{.elements = setup.layout.elements,
                              .block = static_cast<std::size_t>(options.integer("block")),
                              .most = most};
    const std::string& collective = options.text("collective");
    if (collective == "ring") {
      return std::make_unique<DqsgSum>(DqsgOptions{.grid = grid,
                                                   .clip = options.number("clip"),
                                                   .feedback = options.on("feedback"),
                                                   .seed = setup.seed});
    }
    return make_quantized_gather({.name = "dqsg",
                                  .grid = grid,
                                  .collective = collective == "root"
                                                    ? QuantizedGatherOptions::Collective::root
                                                    : QuantizedGatherOptions::Collective::gather,
                                  .clip = options.number("clip"),
                                  .feedback = options.on("feedback"),
                                  .entropy = options.on("entropy"),
                                  .seed = setup.seed});
  };
  return info;
}

}  // namespace thinreduce
