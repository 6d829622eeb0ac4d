#include "thinreduce/methods/quantize/quantized_owner.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "thinreduce/collective/owner.h"
#include "thinreduce/ensure.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/quantize/block_codec.h"
#include "thinreduce/methods/quantize/stream_keys.h"

namespace thinreduce {
namespace {

using Options = QuantizedGatherOptions;

// Blocks of an answer are no longer than this: with long ones, one outlier takes the precision of
// all elements.
constexpr std::size_t kLongestAnswerBlock = 1024;
// A unit has at least this many elements, so that a range of few units is not all overhead. Longer
// blocks are cut where a piece ends.
constexpr std::size_t kMinUnit = 512;
constexpr std::size_t kMaxUnit = 4096;

std::size_t unit_of(std::size_t block) {
  if (block > kMaxUnit) return kMinUnit;
  return (kMinUnit + block - 1) / block * block;
}

// Stochastic rounding uses the draws of a dither, which the owner of a part can subtract: the same
// codes then have less error. With feedback, the scales are fitted to codes without dither.
Options part_options(const Options& options) {
  Options part = options;
  if (!options.feedback) part.rounding = Options::Rounding::dithered;
  return part;
}

// An answer is always dithered and never clipped.
Options answer_options(const Options& options) {
  Options answer = options;
  const BlockGrid& grid = options.quantizer.grid;
  answer.quantizer.grid = grid.with_block(std::min(grid.block(), kLongestAnswerBlock));
  answer.quantizer.levels_per_side = options.answer_levels_per_side;
  answer.scale = Options::Scale::largest;
  answer.rounding = Options::Rounding::dithered;
  answer.clip = 0;
  return answer;
}

class QuantizedOwner final : public Method, private OwnerCodec {
 public:
  explicit QuantizedOwner(const Options& options)
      : options_(part_options(options)),
        answer_options_(answer_options(options)),
        codec_(options_, options_.quantizer),
        answer_codec_(answer_options_, answer_options_.quantizer) {
    if (options_.keeps_residual()) residual_.resize(options_.quantizer.elements());
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == options_.quantizer.elements(), "the bucket must keep its size",
           bucket.values.size(), options_.quantizer.elements());
    mean_ = bucket.values;
    source_ = bucket.values;
    if (options_.keeps_residual()) {
      exchange.timed(Stage::encode, [&] { kernels::add(residual_, bucket.values); });
      source_ = residual_;
    }
    rank_ = exchange.rank();
    world_ = exchange.size();
    stream_keys(options_.seed, exchange.id(), world_ + 1, keys_);
    sent_.clear();
    owned_.clear();
    unanswered_.clear();
    owner_reduce(exchange, *this);
    exchange.statistics["owner"] = 1;
    // The parts are delivered; until here the residual still held all of the gradient.
    if (options_.keeps_residual()) exchange.timed(Stage::encode, [&] { keep_unsent(); });
  }

  void add_residual(std::span<float> values) override {
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void state(Archive& archive) override {
    if (options_.keeps_residual()) archive.summed("residual", residual_);
  }

 private:
  [[nodiscard]] RandomKey key(int rank) const { return keys_[static_cast<std::size_t>(rank)]; }
  // The answers' dither is the stream of rank N, which no rank uses.
  [[nodiscard]] RandomKey answer_key() const { return keys_.back(); }
  [[nodiscard]] float share() const { return 1.0f / static_cast<float>(world_); }

  [[nodiscard]] Range elements(Range range) const {
    const std::size_t all = options_.quantizer.elements();
    return {std::min(range.begin * unit_elements(), all),
            std::min(range.end * unit_elements(), all)};
  }
  // Moves a codec to a range and returns its elements.
  Range move(BlockCodec& codec, Range range) const {
    const Range run = elements(range);
    codec.move_to(run.begin, run.size());
    return run;
  }

  [[nodiscard]] std::size_t units() const override {
    return (options_.quantizer.elements() + unit_elements() - 1) / unit_elements();
  }
  [[nodiscard]] std::size_t unit_elements() const override {
    return unit_of(options_.quantizer.grid.block());
  }
  [[nodiscard]] std::size_t max_part_bytes(Range range) const override {
    return codec_.limit_of(elements(range).begin, elements(range).size());
  }
  [[nodiscard]] std::size_t max_answer_bytes(Range range) const override {
    return answer_codec_.limit_of(elements(range).begin, elements(range).size());
  }
  [[nodiscard]] bool any_pieces() const override {
    // No block of a part or an answer is cut.
    return options_.quantizer.grid.block() <= kMaxUnit &&
           unit_elements() % answer_options_.quantizer.grid.block() == 0;
  }

  void encode_part(Range range, std::vector<std::byte>& out) override {
    const Range run = move(codec_, range);
    if (options_.keeps_residual()) {
      codec_.reserve_error();
      sent_.push_back(codec_.run_of(run.begin, run.size()));
    }
    codec_.append(part(source_, run), key(rank_), out);
  }
  void begin_sum(Range range) override {
    const Range run = elements(range);
    const auto own = part(source_, run);
    const std::size_t bad = kernels::first_nonfinite(own);
    if (bad < own.size()) {
      throw Error::overflow(fmt::format("{}: element {} of rank {} is {}; its residual overflowed",
                                        options_.name, run.begin + bad, rank_, own[bad]));
    }
    sum_.assign(own.begin(), own.end());
    kernels::scale(sum_, share());
  }
  void add_part(Range range, int rank, std::span<const std::byte> bytes) override {
    move(codec_, range);
    codec_.read(bytes,
                {.what = fmt::format("{} part of rank {}", options_.name, rank),
                 .key = key(rank),
                 .factor = share()},
                [&](std::size_t first, std::span<const float> values) {
                  kernels::add(std::span(sum_).subspan(first, values.size()), values);
                });
  }
  void encode_answer(Range range, std::vector<std::byte>& out) override {
    // Sums of values near the largest float may overflow.
    constexpr float kMaxFloat = std::numeric_limits<float>::max();
    for (float& value : sum_) value = std::clamp(value, -kMaxFloat, kMaxFloat);
    move(answer_codec_, range);
    answer_codec_.append(sum_, answer_key(), out);
  }
  void decode_answer(Range range, int owner, std::span<const std::byte> bytes) override {
    const Range run = move(answer_codec_, range);
    const auto mean = part(mean_, run);
    answer_codec_.read(bytes,
                       {.what = fmt::format("{} answer of rank {}", options_.name, owner),
                        .key = answer_key(),
                        .into = mean},
                       [](std::size_t, std::span<const float>) {});
    if (owner != rank_ || !options_.keeps_residual()) return;
    owned_.push_back(run);
    if (!options_.feedback) return;
    for (std::size_t i = 0; i < mean.size(); ++i) {
      unanswered_.push_back((sum_[i] - mean[i]) * static_cast<float>(world_));
    }
  }

  // Keeps, with feedback, the error of this rank's parts and of its answers, otherwise the clipped
  // part. Its own part of its own range was neither quantized nor clipped. Nothing can fail here.
  void keep_unsent() {
    for (BlockCodec::Run& run : sent_) {
      const Range elements{run.first, run.first + run.grid.elements()};
      codec_.move_to(std::move(run));
      const auto values = part(std::span(residual_), elements);
      if (options_.feedback) {
        codec_.keep_error(values, key(rank_));
      } else {
        codec_.keep_clipped(values);
      }
    }
    auto unanswered = unanswered_.begin();
    for (const Range run : owned_) {
      for (float& value : part(std::span(residual_), run)) {
        value = options_.feedback ? *unanswered++ : 0.0f;
      }
    }
  }

  Options options_;
  Options answer_options_;
  BlockCodec codec_;
  BlockCodec answer_codec_;
  std::vector<float> residual_;

  // State of the current reduction.
  int rank_ = 0;
  int world_ = 1;
  std::span<const float> source_;
  std::span<float> mean_;
  std::vector<RandomKey> keys_;  // by rank
  std::vector<float> sum_;       // of one piece, divided by the number of ranks
  // All pieces that were sent, and the elements of those that are owned.
  std::vector<BlockCodec::Run> sent_;
  std::vector<Range> owned_;
  std::vector<float> unanswered_;  // of the owned elements: the sum minus the answer
};

}  // namespace

std::unique_ptr<Method> make_quantized_owner(const QuantizedGatherOptions& options) {
  return std::make_unique<QuantizedOwner>(options);
}

}  // namespace thinreduce
