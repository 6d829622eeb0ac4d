#include "thinreduce/methods/quantize/quantized_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "thinreduce/collective/gather.h"
#include "thinreduce/collective/root.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/quantize/block_codec.h"
#include "thinreduce/methods/quantize/dither.h"
#include "thinreduce/wire/random.h"

namespace thinreduce {
namespace {

using Options = QuantizedGatherOptions;

// The root's answer goes back on a grid so fine that its error does not show beside the ranks'.
constexpr std::uint32_t kAnswerMost = 127;
constexpr int kRoot = 0;

// Sums of values near the largest float may leave the range; they stop at its end.
constexpr float kMost = std::numeric_limits<float>::max();
constexpr float kHuge = kMost / 4;
void keep_finite(std::span<float> values) {
  for (float& value : values) value = std::clamp(value, -kMost, kMost);
}

class QuantizedGather final : public Method {
 public:
  explicit QuantizedGather(const Options& options)
      : options_(options),
        quantizer_(options_, options_.grid),
        answer_(options_, {options_.grid.elements, options_.grid.block, kAnswerMost}) {
    if (keeps_residual()) residual_.resize(options_.grid.elements);
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == options_.grid.elements, "the bucket must keep its size",
           bucket.values.size(), options_.grid.elements);
    std::span<const float> source = bucket.values;
    if (keeps_residual()) {
      exchange.timed(Stage::encode, [&] { kernels::add(residual_, bucket.values); });
      source = residual_;
    }
    exchange.timed(Stage::encode,
                   [&] { quantizer_.write(source, key_of(exchange, exchange.rank()), payload_); });
    if (keeps_residual())
      own_scales_.assign(quantizer_.scales().begin(), quantizer_.scales().end());
    if (options_.collective == Options::Collective::root) {
      through_server(bucket.values, exchange);
    } else {
      gather(exchange, payload_, quantizer_.limit(),
             [&](int rank, std::span<const std::byte> payload) {
               add(payload, rank, exchange, bucket.values);
             });
    }
    // Only now is anything delivered; until here the residual holds it.
    exchange.timed(Stage::encode, [&] { keep_the_rest(exchange); });
  }

  void add_residual(std::span<float> values) override {
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void state(Archive& archive) override {
    if (keeps_residual()) archive.summed("residual", residual_);
  }

 private:
  [[nodiscard]] bool keeps_residual() const {
    return options_.feedback || (options_.clip > 0 && options_.keep_clipped);
  }

  [[nodiscard]] RandomKey key_of(const Exchange& exchange, int rank) const {
    return random_key({.seed = options_.seed,
                       .step = exchange.id().step,
                       .bucket = exchange.id().bucket,
                       .rank = static_cast<std::uint32_t>(rank)});
  }
  [[nodiscard]] std::string what(int rank) const {
    return fmt::format("{} payload of rank {}", options_.name, rank);
  }

  // Adds a rank's part of the mean. Payloads come in rank order; the first makes the sum.
  void add(std::span<const std::byte> payload, int rank, const Exchange& exchange,
           std::span<float> mean) {
    const bool first_rank = rank == 0;
    quantizer_.read(payload,
                    {.what = what(rank),
                     .key = key_of(exchange, rank),
                     .share = 1.0f / static_cast<float>(exchange.size()),
                     .into = first_rank ? mean : std::span<float>()},
                    [&](std::size_t first, std::span<const float> values) {
                      const auto part = mean.subspan(first, values.size());
                      if (!first_rank) kernels::add(part, values);
                      if (rank == exchange.size() - 1 && huge_) keep_finite(part);
                    });
    huge_ = (!first_rank && huge_) || kernels::largest_magnitude(quantizer_.scales()) > kHuge;
  }

  void through_server(std::span<float> values, Exchange& exchange) {
    // The answer's dither is the stream of a rank that does not exist.
    const RandomKey key = key_of(exchange, exchange.size());
    const auto limit = std::max(quantizer_.limit(), answer_.limit());
    const auto answer =
        through_root(exchange, kRoot, payload_, limit,
                     [&](const std::vector<std::span<const std::byte>>& payloads) {
                       for (int rank = 0; rank < exchange.size(); ++rank) {
                         add(payloads[static_cast<std::size_t>(rank)], rank, exchange, values);
                       }
                       std::vector<std::byte> bytes;
                       answer_.write(values, key, bytes);
                       return bytes;
                     });
    exchange.timed(Stage::decode, [&] {
      answer_.read(answer,
                   {.what = fmt::format("{} answer of rank {}", options_.name, kRoot),
                    .key = key,
                    .into = values},
                   [](std::size_t, std::span<const float>) {});
    });
  }

  // With feedback all of this rank's error, otherwise what was clipped.
  void keep_the_rest(const Exchange& exchange) {
    if (options_.feedback) {
      quantizer_.read(payload_,
                      {.what = what(exchange.rank()), .key = key_of(exchange, exchange.rank())},
                      [&](std::size_t first, std::span<const float> values) {
                        for (std::size_t i = 0; i < values.size(); ++i) {
                          residual_[first + i] -= values[i];
                        }
                      });
    } else if (keeps_residual()) {
      options_.grid.keep_clipped(residual_, own_scales_);
    }
  }

  Options options_;
  BlockCodec quantizer_;
  BlockCodec answer_;
  std::vector<float> residual_;
  std::vector<float> own_scales_;
  std::vector<std::byte> payload_;
  bool huge_ = false;  // whether a rank before this one had values near the largest float
};

}  // namespace

std::unique_ptr<Method> make_quantized_gather(const QuantizedGatherOptions& options) {
  return std::make_unique<QuantizedGather>(options);
}

}  // namespace thinreduce
