#include "thinreduce/methods/topk/topk.h"

#include <algorithm>
#include <utility>

#include "thinreduce/collective/gather.h"
#include "thinreduce/collective/shared_loops.h"
#include "thinreduce/ensure.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/method/limits.h"
#include "thinreduce/methods/gather_or_owner.h"
#include "thinreduce/methods/top_selector.h"
#include "thinreduce/methods/topk/chunks.h"
#include "thinreduce/methods/topk/mean.h"
#include "thinreduce/methods/topk/owner.h"
#include "thinreduce/methods/topk/payload.h"

namespace thinreduce {
namespace {

class TopK final : public Method {
 public:
  TopK(std::size_t elements, double density, bool feedback)
      : elements_(elements), k_(values_to_send(density, elements)), feedback_(feedback) {
    if (feedback_) residual_.resize(elements_);
    payload_.reserve(topk_payload_limit(elements_, k_));
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == elements_, "top-k: the bucket must keep its size",
           bucket.values.size(), elements_);
    ensure(!feedback_ || residual_.size() == elements_, "top-k: each element must have a residual",
           residual_.size(), elements_);
    Selected sent;
    exchange.timed(Stage::encode, [&] { sent = encode(bucket.values, exchange.workers); });
    exchange.statistics["owner"] = 0;
    if (elements_ > 0) {
      exchange.statistics["sent"] =
          static_cast<double>(sent.indices.size()) / static_cast<double>(elements_);
    }
    std::vector<TopKReader> ranks;
    gather(exchange, payload_, topk_payload_limit(elements_, k_),
           [&](int rank, std::span<const std::byte> payload) {
             ranks.emplace_back(payload, rank, elements_);
             if (rank + 1 == exchange.size()) write_mean(ranks, bucket.values, exchange.workers);
           });
    // The values are delivered; until here the residual still held them.
    if (feedback_) owed_ = sent.indices;
  }

  void add_residual(std::span<float> values) override {
    settle();
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void state(Archive& archive) override {
    settle();
    if (feedback_) archive.summed("residual", residual_);
  }

 private:
  // Selects and writes the payload.
  Selected encode(std::span<const float> gradient, Workers workers) {
    const auto sent =
        feedback_ ? selector_.add_select(residual_, gradient, k_, workers, std::exchange(owed_, {}))
                  : selector_.select(gradient, k_, workers);
    write_topk_payload(sent, elements_, payload_, TopKValues::f32, workers);
    return sent;
  }

  // Sent elements leave the residual when the next step adds its gradient, or the residual is read:
  // that saves a pass over memory.
  void settle() {
    for (const auto element : std::exchange(owed_, {})) residual_[element] = 0;
  }

  void write_mean(std::span<const TopKReader> ranks, std::span<float> values,
                  Workers workers) const {
    write_topk_mean(
        ranks, TopKReader::blocks(elements_),
        [&](std::size_t block) { return TopKReader::elements_of(block, elements_); }, values,
        workers);
  }

  std::size_t elements_;
  std::size_t k_;
  bool feedback_;
  std::vector<float> residual_;
  TopSelector selector_;
  std::span<const std::uint32_t> owed_;  // sent elements that the residual still has
  std::vector<std::byte> payload_;
};

constexpr long long kDefaultChunk = 4096;

// Returns whether the options ask for top-k within chunks.
bool within_chunks(const Options& options) {
  return options.text("chunk") != "auto" || options.text("values") == "2bit" ||
         options.number("decay") < 1;
}

TopKChunkOptions chunk_options(const Options& options) {
  const bool automatic = options.text("chunk") == "auto";
  return {.density = options.number("density"),
          .chunk = static_cast<std::size_t>(automatic ? kDefaultChunk : options.integer("chunk")),
          .two_bits = options.text("values") == "2bit",
          .feedback = options.on("feedback"),
          .decay = static_cast<float>(options.number("decay"))};
}

void check_chunks(const Options& options) {
  if (within_chunks(options) && options.text("collective") == "owner") {
    throw Error(ErrorCode::bad_spec,
                "topk: chunk, values=2bit and a decay below 1 do not work with collective=owner; "
                "leave out collective");
  }
  if (options.number("decay") < 1 && !options.on("feedback")) {
    throw Error(ErrorCode::bad_spec,
                "topk: decay shrinks the residual, and feedback=off has none; leave out one of "
                "them");
  }
}

}  // namespace

MethodInfo topk_info() {
  MethodInfo info;
  info.name = "topk";
  info.wire_id = 3;
  info.algebra = Algebra::gather;
  info.summary =
      "Each rank sends its elements of largest magnitude with their indices: 6 bytes per element "
      "in a gather, 4 with owners, fewer with values=2bit.";
  info.paper = "Aji and Heafield 2017, Sparse Communication for Distributed Gradient Descent";
  info.options = {
      OptionInfo::number("density", 0.1, 1e-6, 1,
                         "Fraction of the bucket's elements that each rank sends per step; at "
                         "least one element is sent."),
      OptionInfo::on_off(
          "feedback", true,
          "on: elements that were not sent are added to the next step's gradient (error "
          "feedback). off: they are discarded."),
      gather_or_owner_option(
          "its values to the owners of their elements, which send the largest sums to all",
          kMaxRanksToGatherSparse),
      OptionInfo::integer("chunk", kDefaultChunk, 64, 1048576,
                          "Elements per chunk: each rank sends the largest elements of every chunk "
                          "instead of the largest of the whole bucket. auto: 4096 with values=2bit "
                          "or decay below 1, otherwise there are no chunks. Can't be used "
                          "with collective=owner.")
          .or_else("auto"),
      OptionInfo::choice("values", "f32", {"f32", "2bit"},
                         "Encoding of a sent value. f32: the value itself. 2bit: its sign and one "
                         "of two magnitudes per chunk; the difference stays in the residual, or "
                         "is discarded with feedback=off. "
                         "2bit can't be used with collective=owner."),
      OptionInfo::number("decay", 1, 0, 1,
                         "The residual is multiplied by this factor before each step's gradient is "
                         "added to it; 1: no decay. Values below 1 need feedback=on and can't be "
                         "used with collective=owner."),
  };
  info.check = check_chunks;
  // The residual decays before a step's gradient is added to it, so a failed step decays it, too.
  info.losses = [](const Options& options) {
    return Losses{.discards = options.number("decay") < 1};
  };
  info.presets = {{"paper", "density=0.01,collective=gather", "Sends 1 % of the elements."}};
  info.make = [](const Options& options, const MethodSetup& setup) -> std::unique_ptr<Method> {
    require_32bit_indices("topk", setup.layout);
    if (within_chunks(options)) {
      return make_topk_chunks(setup.layout.elements, chunk_options(options));
    }
    const auto values = values_to_send(options.number("density"), setup.layout.elements);
    if (by_owners(options, setup,
                  {.payload_bytes = 6.0 * static_cast<double>(values),
                   .owner_payloads = 2.2,
                   .max_ranks_to_gather = kMaxRanksToGatherSparse})) {
      return make_topk_owner(setup.layout.elements, options.number("density"),
                             options.on("feedback"));
    }
    return std::make_unique<TopK>(setup.layout.elements, options.number("density"),
                                  options.on("feedback"));
  };
  return info;
}

}  // namespace thinreduce
