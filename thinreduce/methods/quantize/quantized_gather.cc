#include "thinreduce/methods/quantize/quantized_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "thinreduce/collective/gather.h"
#include "thinreduce/collective/root.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/quantize/block_codec.h"
#include "thinreduce/methods/quantize/dither.h"
#include "thinreduce/methods/quantize/quantized_owner.h"
#include "thinreduce/methods/quantize/stream_keys.h"

namespace thinreduce {
namespace {

using Options = QuantizedGatherOptions;

// The root's answer has enough levels that its error is negligible beside the ranks'.
constexpr std::uint32_t kAnswerLevelsPerSide = 127;
constexpr int kRoot = 0;

// Sums of values near the largest float may overflow; they are clamped to it.
constexpr float kMaxFloat = std::numeric_limits<float>::max();
constexpr float kHuge = kMaxFloat / 4;
void keep_finite(std::span<float> values) {
  for (float& value : values) value = std::clamp(value, -kMaxFloat, kMaxFloat);
}

class QuantizedGather final : public Method {
 public:
  explicit QuantizedGather(const Options& options)
      : options_(options),
        codec_(options_, options_.quantizer),
        answer_options_(answer_options(options)),
        answer_codec_(answer_options_, answer_options_.quantizer) {
    if (options_.keeps_residual()) residual_.resize(options_.quantizer.elements());
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == options_.quantizer.elements(), "the bucket must keep its size",
           bucket.values.size(), options_.quantizer.elements());
    std::span<const float> source = bucket.values;
    if (options_.keeps_residual()) {
      exchange.timed(Stage::encode, [&] { kernels::add(residual_, bucket.values); });
      source = residual_;
    }
    exchange.timed(Stage::encode,
                   [&] { codec_.write(source, key(exchange, exchange.rank()), payload_); });
    if (options_.keeps_residual())
      own_scales_.assign(codec_.scales().begin(), codec_.scales().end());
    if (options_.collective == Options::Collective::root) {
      exchange_with_root(bucket.values, exchange);
    } else {
      gather(exchange, payload_, codec_.limit(), [&](int rank, std::span<const std::byte> payload) {
        add(payload, rank, exchange, bucket.values);
      });
    }
    exchange.statistics["owner"] = 0;
    // The payload is delivered; until here the residual still held all of it.
    exchange.timed(Stage::encode, [&] { keep_unsent(exchange); });
  }

  void add_residual(std::span<float> values) override {
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void state(Archive& archive) override {
    if (options_.keeps_residual()) archive.summed("residual", residual_);
  }

 private:
  // The answer is not clipped: no residual would keep the clipped part.
  static Options answer_options(Options options) {
    options.quantizer.levels_per_side = kAnswerLevelsPerSide;
    options.clip = 0;
    options.feedback = false;
    return options;
  }

  [[nodiscard]] RandomKey key(const Exchange& exchange, int rank) const {
    return stream_key(options_.seed, exchange.id(), rank);
  }
  [[nodiscard]] std::string what(int rank) const {
    return fmt::format("{} payload of rank {}", options_.name, rank);
  }

  // Adds a rank's part to the mean. Payloads come in rank order; the first one replaces `mean`.
  void add(std::span<const std::byte> payload, int rank, const Exchange& exchange,
           std::span<float> mean) {
    const bool first_rank = rank == 0;
    codec_.read(payload,
                {.what = what(rank),
                 .key = key(exchange, rank),
                 .factor = 1.0f / static_cast<float>(exchange.size()),
                 .into = first_rank ? mean : std::span<float>()},
                [&](std::size_t first, std::span<const float> values) {
                  const auto part = mean.subspan(first, values.size());
                  if (!first_rank) kernels::add(part, values);
                  if (rank == exchange.size() - 1 && huge_) keep_finite(part);
                });
    huge_ = (!first_rank && huge_) || kernels::largest_magnitude(codec_.scales()) > kHuge;
  }

  void exchange_with_root(std::span<float> values, Exchange& exchange) {
    // The answer's dither is the stream of rank N, which no rank uses.
    const RandomKey answer_key = key(exchange, exchange.size());
    const auto limit = std::max(codec_.limit(), answer_codec_.limit());
    const auto answer =
        through_root(exchange, kRoot, payload_, limit,
                     [&](const std::vector<std::span<const std::byte>>& payloads) {
                       for (int rank = 0; rank < exchange.size(); ++rank) {
                         add(payloads[static_cast<std::size_t>(rank)], rank, exchange, values);
                       }
                       std::vector<std::byte> bytes;
                       answer_codec_.write(values, answer_key, bytes);
                       return bytes;
                     });
    exchange.timed(Stage::decode, [&] {
      answer_codec_.read(
          answer,
          {.what = fmt::format("{} answer of rank {}", options_.name, kRoot), .key = answer_key},
          [&](std::size_t first, std::span<const float> decoded) {
            const auto part = values.subspan(first, decoded.size());
            if (exchange.rank() == kRoot && options_.feedback) {
              keep_answer_error(first, part, decoded, static_cast<float>(exchange.size()));
            }
            std::copy(decoded.begin(), decoded.end(), part.begin());
          });
    });
  }

  // With feedback, the root keeps the error of its answer, in the sum over all ranks.
  void keep_answer_error(std::size_t first, std::span<const float> mean,
                         std::span<const float> decoded, float world) {
    for (std::size_t i = 0; i < mean.size(); ++i) {
      residual_[first + i] += world * (mean[i] - decoded[i]);
    }
  }

  // Keeps this rank's whole error with feedback, otherwise the clipped part. The residual may have
  // the error of an answer already, so nothing may fail here: the text is short, because a longer
  // one needs memory.
  void keep_unsent(const Exchange& exchange) {
    if (options_.feedback) {
      codec_.read(payload_, {.what = "own payload", .key = key(exchange, exchange.rank())},
                  [&](std::size_t first, std::span<const float> values) {
                    for (std::size_t i = 0; i < values.size(); ++i) {
                      residual_[first + i] -= values[i];
                    }
                  });
    } else if (options_.keeps_residual()) {
      options_.quantizer.keep_clipped(residual_, own_scales_);
    }
  }

  Options options_;
  BlockCodec codec_;
  Options answer_options_;
  BlockCodec answer_codec_;
  std::vector<float> residual_;
  std::vector<float> own_scales_;
  std::vector<std::byte> payload_;
  bool huge_ = false;  // a previous rank had values near the largest float
};

}  // namespace

std::unique_ptr<Method> make_quantized_gather(const QuantizedGatherOptions& options) {
  if (options.collective == QuantizedGatherOptions::Collective::owner) {
    return make_quantized_owner(options);
  }
  return std::make_unique<QuantizedGather>(options);
}

}  // namespace thinreduce
