#include "thinreduce/methods/quantized_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "thinreduce/collective/gather.h"
#include "thinreduce/collective/root.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/archive.h"
#include "thinreduce/methods/code_payload.h"
#include "thinreduce/wire/random.h"

namespace thinreduce {
namespace {

using Options = QuantizedGatherOptions;

// The root's answer goes back on a grid so fine that its error does not show beside the ranks'.
constexpr std::uint32_t kAnswerMost = 127;
constexpr int kRoot = 0;

// One rank's quantizer, or the root's for its answer: a grid, its payload, and the scales.
class Quantizer {
 public:
  Quantizer(const Options& options, const BlockGrid& grid)
      : options_(options),
        grid_(grid),
        payload_({grid.elements, grid.blocks(), grid.symbols(), options.entropy}),
        scales_(grid.blocks()) {}

  [[nodiscard]] std::size_t limit() const { return payload_.limit(); }
  [[nodiscard]] std::span<const float> scales() const { return scales_; }

  // Replaces `out`.
  void write(std::span<const float> values, RandomKey key, std::vector<std::byte>& out) {
    out.clear();
    payload_.write(
        scales_,
        [&](std::size_t first, std::span<std::uint32_t> codes) {
          measure(values, first, codes.size());
          grid_.quantize(values.subspan(first, codes.size()), first, scales_, key, codes);
        },
        out);
  }

  // Calls sink(first, values) for the decoded values, piece by piece. The sink may give room for
  // them by `into`, where they are wanted as they are.
  template <typename Sink>
  void read(std::span<const std::byte> bytes, const std::string& what, RandomKey key,
            std::span<float> into, Sink&& sink) {
    BlockGrid::Sum sum;
    if (options_.rounding == Options::Rounding::dithered) sum.keys = std::span(&key, 1);
    payload_.read(bytes, what, scales_,
                  [&](std::size_t first, std::span<const std::uint32_t> codes) {
                    const auto values = into.empty() ? std::span(values_).first(codes.size())
                                                     : into.subspan(first, codes.size());
                    grid_.dequantize(codes, first, scales_, sum, values);
                    sink(first, std::span<const float>(values));
                  });
  }

 private:
  // Of the blocks that begin here, while their values are in cache.
  void measure(std::span<const float> values, std::size_t first, std::size_t count) {
    const std::size_t from = (first + grid_.block - 1) / grid_.block * grid_.block;
    const std::size_t to =
        std::min((first + count + grid_.block - 1) / grid_.block * grid_.block, grid_.elements);
    if (from >= to) return;
    const auto part = values.subspan(from, to - from);
    if (options_.scale == Options::Scale::norm) {
      grid_.measure_norm(part, from, scales_);
    } else {
      grid_.measure(part, from, options_.clip, scales_);
    }
  }

  const Options& options_;
  BlockGrid grid_;
  CodePayload payload_;
  std::vector<float> scales_;
  std::array<float, kernels::kPackUnit> values_{};
};

class QuantizedGather final : public Method {
 public:
  explicit QuantizedGather(const Options& options)
      : options_(options),
        quantizer_(options_, options_.grid),
        answer_(options_, {options_.grid.elements, options_.grid.block, kAnswerMost}) {
    if (keeps_residual()) residual_.resize(options_.grid.elements);
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == options_.grid.elements, "a bucket keeps its size");
    std::span<const float> source = bucket.values;
    if (keeps_residual()) {
      exchange.encode([&] { kernels::add(residual_, bucket.values); });
      source = residual_;
    }
    exchange.encode([&] { quantizer_.write(source, key_of(exchange, exchange.rank()), payload_); });
    if (keeps_residual())
      own_scales_.assign(quantizer_.scales().begin(), quantizer_.scales().end());
    if (options_.travel == Options::Travel::server) {
      through_server(bucket.values, exchange);
    } else {
      gather(exchange, payload_, quantizer_.limit(),
             [&](int rank, std::span<const std::byte> payload) {
               add(payload, rank, exchange, bucket.values);
             });
      exchange.decode([&] { scale_to_mean(bucket.values, exchange.size()); });
    }
    // Only now is anything delivered; until here the residual holds it.
    exchange.encode([&] { keep_the_rest(exchange); });
  }

  void state(Archive& archive) override {
    if (keeps_residual()) archive.per_element("residual", residual_);
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

  static void scale_to_mean(std::span<float> sum, int world) {
    if (world > 1) kernels::scale(sum, 1.0f / static_cast<float>(world));
  }

  // Payloads come in rank order; the first makes the sum.
  void add(std::span<const std::byte> payload, int rank, const Exchange& exchange,
           std::span<float> sum) {
    const bool first_rank = rank == 0;
    quantizer_.read(payload, what(rank), key_of(exchange, rank),
                    first_rank ? sum : std::span<float>(),
                    [&](std::size_t first, std::span<const float> values) {
                      if (!first_rank) kernels::add(sum.subspan(first, values.size()), values);
                    });
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
                       scale_to_mean(values, exchange.size());
                       std::vector<std::byte> bytes;
                       answer_.write(values, key, bytes);
                       return bytes;
                     });
    exchange.decode([&] {
      answer_.read(answer, "the root's answer", key, values,
                   [](std::size_t, std::span<const float>) {});
    });
  }

  // With feedback all of this rank's error, otherwise what was clipped.
  void keep_the_rest(const Exchange& exchange) {
    if (options_.feedback) {
      quantizer_.read(payload_, what(exchange.rank()), key_of(exchange, exchange.rank()), {},
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
  Quantizer quantizer_;
  Quantizer answer_;
  std::vector<float> residual_;
  std::vector<float> own_scales_;
  std::vector<std::byte> payload_;
};

}  // namespace

std::unique_ptr<Method> make_quantized_gather(const QuantizedGatherOptions& options) {
  return std::make_unique<QuantizedGather>(options);
}

void check_quantizer(const std::string& name, const MethodSetup& setup, std::uint32_t most) {
  if (setup.layout.elements > 0xffffffff) {
    throw Error(ErrorCode::bad_input, fmt::format("{}: bucket {} has {} elements, at most 2^32 - 1 "
                                                  "are possible",
                                                  name, setup.layout.id, setup.layout.elements));
  }
  // Where sums of codes and dither stay within 32 bits, and sums of codes within 16.
  const auto world = static_cast<std::uint64_t>(setup.world);
  if (world * most + world / 2 >= 32768) {
    throw Error(ErrorCode::bad_spec,
                fmt::format("{}: {} levels on each side of zero are too many for {} ranks; their "
                            "product must be below 32768",
                            name, most, setup.world));
  }
}

}  // namespace thinreduce
