#include "thinreduce/methods/ndqsg/nested_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "thinreduce/collective/gather.h"
#include "thinreduce/ensure.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/ndqsg/code.h"
#include "thinreduce/methods/ndqsg/nested_payload.h"
#include "thinreduce/methods/ndqsg/side_information.h"
#include "thinreduce/methods/quantize/quantized_payload.h"
#include "thinreduce/methods/quantize/stream_keys.h"

namespace thinreduce {
namespace {

class NestedGather final : public Method {
 public:
  explicit NestedGather(const NestedGatherOptions& options)
      : options_(options),
        plain_({options.quantizer.elements(), options.quantizer.blocks(),
                options.quantizer.symbols(), options.entropy}),
        nested_({options.quantizer, options.ratio, options.entropy}),
        scales_(options.quantizer.blocks()),
        y_(options.quantizer.elements()) {
    if (options_.feedback) residual_.resize(options_.quantizer.elements());
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    exchange.statistics["owner"] = 0;
    ensure(bucket.values.size() == options_.quantizer.elements(),
           "ndqsg: the bucket must keep its size", bucket.values.size(),
           options_.quantizer.elements());
    if (bucket.values.empty()) return;
    std::span<const float> source = bucket.values;
    if (options_.feedback) {
      exchange.timed(Stage::encode, [&] { kernels::add(residual_, bucket.values); });
      source = residual_;
      error_ = residual_;
    }
    sent_nested_ = {};
    plain_ranks_ =
        side_.nests() ? std::min(options_.first_group, exchange.size()) : exchange.size();
    if (plain_ranks_ < exchange.size()) {
      exchange_plain(source, exchange, y_);
      exchange_nested(source, exchange, bucket.values);
      exchange.timed(Stage::decode, [&] {
        for (float& value : bucket.values) value = finite(value);
      });
    } else {
      exchange_plain(source, exchange, bucket.values);
    }
    // The payloads are delivered; until here residual and side information were unchanged.
    if (options_.feedback) std::swap(residual_, error_);
    end_step(exchange);
  }

  void add_residual(std::span<float> values) override {
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void state(Archive& archive) override {
    if (options_.feedback) archive.summed("residual", residual_);
    side_.state(archive);
  }
  [[nodiscard]] std::uint64_t fingerprint() const override { return side_.fingerprint(); }

 private:
  static constexpr std::size_t kPiece = kernels::kCodesPerPack;
  static_assert(kPiece % NestedPayload::kRunElements == 0, "a piece must be whole runs");
  using Codes = std::array<std::uint32_t, kPiece>;

  static float finite(float value) {
    constexpr float kMaxFloat = std::numeric_limits<float>::max();
    return std::clamp(value, -kMaxFloat, kMaxFloat);
  }
  [[nodiscard]] RandomKey key(const Exchange& exchange, int rank) const {
    return stream_key(options_.seed, exchange.id(), rank);
  }
  static std::string what(int rank) { return fmt::format("ndqsg payload of rank {}", rank); }

  template <typename Work>
  void for_pieces(Work&& work) const {
    for (std::size_t first = 0; first < y_.size(); first += kPiece) {
      work(first, std::min(kPiece, y_.size() - first));
    }
  }

  // Gathers the payloads of the plain ranks and sets `mean` to their mean.
  void exchange_plain(std::span<const float> source, Exchange& exchange, std::span<float> mean) {
    payload_.clear();
    if (exchange.rank() < plain_ranks_) {
      exchange.timed(Stage::encode, [&] { write_plain(source, key(exchange, exchange.rank())); });
    }
    gather(exchange, payload_, plain_.limit(), [&](int rank, std::span<const std::byte> payload) {
      if (rank < plain_ranks_) {
        add_plain(payload, rank, exchange, mean);
      } else {
        require_empty(payload, rank);
      }
    });
  }

  void write_plain(std::span<const float> source, RandomKey own_key) {
    plain_.write(
        scales_,
        [&](std::size_t first, std::span<std::uint32_t> codes) {
          options_.quantizer.measure_from(source, first, codes.size(), 0, scales_);
          options_.quantizer.quantize(source.subspan(first, codes.size()), first, scales_, own_key,
                                      codes);
        },
        payload_);
  }

  static void require_empty(std::span<const std::byte> payload, int rank) {
    if (payload.empty()) return;
    throw Error(
        ErrorCode::bad_frame,
        fmt::format("{} has {} bytes and must be empty: that rank sends no codes in this stage",
                    what(rank), payload.size()));
  }

  void add_plain(std::span<const std::byte> payload, int rank, const Exchange& exchange,
                 std::span<float> mean) {
    const RandomKey rank_key = key(exchange, rank);
    plain_.read(payload, what(rank), scales_,
                [&](std::size_t first, std::span<const std::uint32_t> codes) {
                  const auto part = std::span(values_).first(codes.size());
                  options_.quantizer.dequantize(codes, first, scales_,
                                                {.keys = std::span(&rank_key, 1)}, part);
                  if (rank == exchange.rank()) subtract_own(first, part);
                  kernels::scale(part, 1.0f / static_cast<float>(plain_ranks_));
                  const auto sum = mean.subspan(first, codes.size());
                  if (rank == 0) {
                    std::copy(part.begin(), part.end(), sum.begin());
                  } else {
                    kernels::add(sum, part);
                  }
                  if (rank == plain_ranks_ - 1) {
                    for (float& value : sum) value = finite(value);
                  }
                });
  }

  // Gathers the payloads of the nested ranks; the mean is y's part and theirs.
  void exchange_nested(std::span<const float> source, Exchange& exchange, std::span<float> mean) {
    payload_.clear();
    if (exchange.rank() >= plain_ranks_) {
      exchange.timed(Stage::encode, [&] { write_nested(source, key(exchange, exchange.rank())); });
    }
    gather(exchange, payload_, nested_.limit(), [&](int rank, std::span<const std::byte> payload) {
      if (rank < plain_ranks_) {
        require_empty(payload, rank);
        return;
      }
      if (rank == plain_ranks_) {
        std::copy(y_.begin(), y_.end(), mean.begin());
        kernels::scale(mean,
                       static_cast<float>(plain_ranks_) / static_cast<float>(exchange.size()));
      }
      add_nested(payload, rank, exchange, mean);
    });
  }

  void write_nested(std::span<const float> source, RandomKey own_key) {
    BlockQuantizer quantizer = options_.quantizer;
    nested_.clear();
    quantizer.measure(source, 0, 0, nested_.scales);
    nested_.alpha = static_cast<float>(options_.alpha ? *options_.alpha : measured_alpha(source));
    const NestedCode code{options_.ratio, nested_.alpha};
    for_pieces([&](std::size_t first, std::size_t count) {
      const auto values = source.subspan(first, count);
      const auto codes = std::span(codes_).first(count);
      const auto plain = std::span(plain_codes_).first(count);
      quantizer.gain = 1;
      quantizer.quantize(values, first, nested_.scales, own_key, plain);
      quantizer.gain = nested_.alpha;
      if (nested_.alpha == 1) {
        std::copy(plain.begin(), plain.end(), codes.begin());
      } else {
        quantizer.quantize(values, first, nested_.scales, own_key, codes);
      }
      // The code of value 0 is M, a multiple of the ratio.
      code.wrap(codes);
      const auto found = std::span(values_).first(count);
      quantizer.dequantize(codes, first, nested_.scales, {.keys = std::span(&own_key, 1)}, found);
      NestedPayload::for_runs(first, count, [&](std::size_t, std::size_t at, std::size_t run) {
        const auto part = found.subspan(at, run);
        find_values(code, first + at, part);
        const std::uint32_t wrong = failures(code, first + at, part, values.subspan(at, run));
        const bool fails = wrong > options_.failures * static_cast<double>(run);
        nested_.append((fails ? plain : codes).subspan(at, run), fails);
        nested_.count_plain(plain.subspan(at, run));
        if (!fails) nested_.failures += wrong;
      });
    });
    nested_.write(payload_);
  }

  // Returns the best alpha for the distances of this rank's values from y.
  [[nodiscard]] double measured_alpha(std::span<const float> source) const {
    double squares = 0;
    for_blocks(0, source.size(), [&](std::size_t at, std::size_t run, float step_size) {
      for (std::size_t i = at; i < at + run; ++i) {
        const double z = (static_cast<double>(source[i]) - y_[i]) / step_size;
        squares += z * z;
      }
    });
    return NestedCode::best_alpha(squares / static_cast<double>(source.size()));
  }

  // Calls work(offset, count, step size) for the parts of blocks that are not all zeros.
  template <typename Work>
  void for_blocks(std::size_t first, std::size_t count, Work&& work) const {
    options_.quantizer.grid.for_each_block(
        first, count, [&](std::size_t block, std::size_t at, std::size_t run) {
          const float step_size = options_.quantizer.step_size(nested_.scales[block]);
          if (step_size > 0) work(at, run, step_size);
        });
  }

  // Turns (code - u)*step size into the decoded value, using y.
  void find_values(const NestedCode& code, std::size_t first, std::span<float> values) const {
    for_blocks(first, values.size(), [&](std::size_t at, std::size_t run, float step_size) {
      for (std::size_t i = at; i < at + run; ++i) {
        values[i] = code.value(values[i], y_[first + i], step_size);
      }
    });
  }

  // Returns the number of values that were decoded wrongly.
  [[nodiscard]] std::uint32_t failures(const NestedCode& code, std::size_t first,
                                       std::span<const float> found,
                                       std::span<const float> exact) const {
    std::uint32_t wrong = 0;
    for_blocks(first, found.size(), [&](std::size_t at, std::size_t run, float step_size) {
      for (std::size_t i = at; i < at + run; ++i) {
        wrong += code.failed(found[i], exact[i], y_[first + i], step_size) ? 1 : 0;
      }
    });
    return wrong;
  }

  void add_nested(std::span<const std::byte> payload, int rank, const Exchange& exchange,
                  std::span<float> mean) {
    nested_.read(payload, what(rank));
    const RandomKey rank_key = key(exchange, rank);
    const NestedCode code{options_.ratio, nested_.alpha};
    const float share = 1.0f / static_cast<float>(exchange.size());
    sent_nested_.fraction += nested_.nested_fraction();
    sent_nested_.bytes += static_cast<double>(payload.size());
    sent_nested_.plain_bytes += nested_.plain_bytes;
    sent_nested_.failures += nested_.failures;
    sent_nested_.alpha += nested_.alpha;
    for_pieces([&](std::size_t first, std::size_t count) {
      const auto codes = std::span(codes_).first(count);
      const auto part = std::span(values_).first(count);
      std::array<bool, kPiece / NestedPayload::kRunElements> is_plain{};
      NestedPayload::for_runs(0, count, [&](std::size_t run, std::size_t at, std::size_t size) {
        is_plain[run] = nested_.next(codes.subspan(at, size));
      });
      options_.quantizer.dequantize(codes, first, nested_.scales, {.keys = std::span(&rank_key, 1)},
                                    part);
      NestedPayload::for_runs(0, count, [&](std::size_t run, std::size_t at, std::size_t size) {
        if (!is_plain[run]) find_values(code, first + at, part.subspan(at, size));
      });
      if (rank == exchange.rank()) subtract_own(first, part);
      kernels::scale(part, share);
      kernels::add(mean.subspan(first, count), part);
    });
  }

  void subtract_own(std::size_t first, std::span<const float> sent) {
    if (!options_.feedback) return;
    for (std::size_t i = 0; i < sent.size(); ++i) error_[first + i] -= sent[i];
  }

  void end_step(Exchange& exchange) {
    const int nested_ranks = exchange.size() - plain_ranks_;
    exchange.statistics["nested"] = nested_ranks > 0 ? 1 : 0;
    exchange.statistics["nested_fraction"] = 0;
    if (nested_ranks > 0) {
      const auto ranks = static_cast<double>(nested_ranks);
      exchange.statistics["nested_fraction"] = sent_nested_.fraction / ranks;
      exchange.statistics["alpha"] = sent_nested_.alpha / ranks;
      exchange.statistics["decode_failures"] =
          static_cast<double>(sent_nested_.failures) / (ranks * static_cast<double>(y_.size()));
      // Where every failure is tolerated, as in the paper, the codes are nested in any case.
      if (options_.failures < 1) side_.learn(1 - sent_nested_.bytes / sent_nested_.plain_bytes);
    } else if (!side_.nests()) {
      side_.count_plain_step();
    }
  }

  // Sums over the nested ranks of one step.
  struct SentNested {
    double fraction = 0;
    double bytes = 0;
    double plain_bytes = 0;  // of plain codes instead
    double alpha = 0;
    std::uint64_t failures = 0;
  };

  NestedGatherOptions options_;
  QuantizedPayload plain_;
  NestedPayload nested_;
  SideInformation side_;
  std::vector<float> residual_;
  std::vector<float> error_;  // the next residual, if the exchange succeeds

  // The current step.
  int plain_ranks_ = 1;
  SentNested sent_nested_;
  std::vector<float> scales_;  // of a plain payload
  std::vector<float> y_;       // side information: the mean over the plain ranks
  std::vector<std::byte> payload_;
  Codes codes_{};
  Codes plain_codes_{};
  std::array<float, kPiece> values_{};
};

}  // namespace

std::unique_ptr<Method> make_nested_gather(const NestedGatherOptions& options) {
  return std::make_unique<NestedGather>(options);
}

}  // namespace thinreduce
