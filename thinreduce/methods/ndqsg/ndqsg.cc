#include "thinreduce/methods/ndqsg/ndqsg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "thinreduce/collective/gather.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/methods/ndqsg/code.h"
#include "thinreduce/methods/ndqsg/side_information.h"
#include "thinreduce/methods/quantize/block_quantizer.h"
#include "thinreduce/methods/quantize/options.h"
#include "thinreduce/methods/quantize/quantized_payload.h"
#include "thinreduce/methods/quantize/stream_keys.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

struct NdqsgOptions {
  BlockQuantizer quantizer;
  std::uint32_t ratio = 3;
  SideInformationOptions side;
  int first_group = 1;  // number of ranks that send plain codes; the others send nested ones
  bool entropy = true;
  bool feedback = false;
  std::uint64_t seed = 0;
};

// A nested payload has one element in this many as an exact float, at random positions.
constexpr std::size_t kSampleEvery = 1024;
constexpr std::size_t kMaxSamples = 4096;
// Purpose of the random stream that chooses the sample; the dither has purpose 0.
constexpr std::uint32_t kSampleStream = 1;

std::size_t samples_of(std::size_t elements) {
  return std::min({elements, elements / kSampleEvery + 1, kMaxSamples});
}

class Ndqsg final : public Method {
 public:
  explicit Ndqsg(const NdqsgOptions& options)
      : options_(options),
        plain_({options.quantizer.elements, options.quantizer.blocks(), options.quantizer.symbols(),
                options.entropy}),
        nested_({options.quantizer.elements, options.quantizer.blocks(), options.ratio,
                 options.entropy}),
        side_(options.side),
        scales_(options.quantizer.blocks()),
        y_(options.quantizer.elements) {
    if (options_.feedback) residual_.resize(options_.quantizer.elements);
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == options_.quantizer.elements,
           "ndqsg: the bucket must keep its size", bucket.values.size(),
           options_.quantizer.elements);
    if (bucket.values.empty()) return;
    std::span<const float> source = bucket.values;
    if (options_.feedback) {
      exchange.timed(Stage::encode, [&] { kernels::add(residual_, bucket.values); });
      source = residual_;
    }
    begin_step(exchange);
    exchange.timed(Stage::encode, [&] { write(source, exchange); });

    // Payloads come in rank order: first the plain ones, whose mean is y, then the nested ones.
    const auto limit = std::max(plain_.limit(), nested_.limit() + sample_.size() * sizeof(float));
    gather(exchange, payload_, limit, [&](int rank, std::span<const std::byte> payload) {
      if (rank < plain_ranks_) {
        add_plain(payload, rank, exchange);
      } else {
        add_nested(payload, rank, exchange, bucket.values);
      }
      if (rank == plain_ranks_ - 1) {
        std::copy(y_.begin(), y_.end(), bucket.values.begin());
        kernels::scale(bucket.values,
                       static_cast<float>(plain_ranks_) / static_cast<float>(exchange.size()));
      }
    });
    exchange.timed(Stage::decode, [&] {
      for (float& value : bucket.values) value = finite(value);
    });
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
  static float finite(float value) {
    constexpr float kMaxFloat = std::numeric_limits<float>::max();
    return std::clamp(value, -kMaxFloat, kMaxFloat);
  }

  [[nodiscard]] RandomKey key(const Exchange& exchange, int rank) const {
    return stream_key(options_.seed, exchange.id(), rank);
  }

  void begin_step(const Exchange& exchange) {
    plain_ranks_ =
        side_.nests() ? std::min(options_.first_group, exchange.size()) : exchange.size();
    code_ = {options_.ratio, side_.alpha()};
    tried_ = {};
    const std::size_t samples = plain_ranks_ < exchange.size() ? samples_of(y_.size()) : 0;
    const RandomKey positions = stream_key(options_.seed, exchange.id(), 0, kSampleStream);
    sample_.resize(samples);
    for (std::size_t i = 0; i < samples; ++i) {
      const std::uint64_t draw = random_bits(positions, static_cast<std::uint32_t>(i));
      sample_[i] = static_cast<std::size_t>(draw * y_.size() >> 32);
    }
    std::sort(sample_.begin(), sample_.end());
    if (options_.feedback) error_ = residual_;
  }

  void end_step(Exchange& exchange) {
    exchange.statistics["nested"] = plain_ranks_ < exchange.size() ? 1 : 0;
    exchange.statistics["alpha"] = code_.alpha;
    if (tried_.samples > 0) {
      exchange.statistics["decode_failures"] =
          static_cast<double>(tried_.failures) / static_cast<double>(tried_.samples);
    }
    if (exchange.size() > options_.first_group) side_.learn(tried_);
  }

  void write(std::span<const float> source, const Exchange& exchange) {
    const RandomKey own_key = key(exchange, exchange.rank());
    const bool nested = exchange.rank() >= plain_ranks_;
    BlockQuantizer quantizer = options_.quantizer;
    quantizer.gain = nested ? static_cast<float>(code_.alpha) : 1;
    payload_.clear();
    (nested ? nested_ : plain_)
        .write(
            scales_,
            [&](std::size_t first, std::span<std::uint32_t> codes) {
              quantizer.measure_from(source, first, codes.size(), 0, scales_);
              quantizer.quantize(source.subspan(first, codes.size()), first, scales_, own_key,
                                 codes);
              // The code of value 0 is M, a multiple of the ratio.
              if (nested) code_.wrap(codes);
            },
            payload_);
    if (!nested) return;
    for (const std::size_t position : sample_) {
      const auto bytes = std::as_bytes(source.subspan(position, 1));
      payload_.insert(payload_.end(), bytes.begin(), bytes.end());
    }
  }

  void add_plain(std::span<const std::byte> payload, int rank, const Exchange& exchange) {
    const RandomKey rank_key = key(exchange, rank);
    plain_.read(payload, fmt::format("ndqsg payload of rank {}", rank), scales_,
                [&](std::size_t first, std::span<const std::uint32_t> codes) {
                  const auto part = std::span(values_).first(codes.size());
                  options_.quantizer.dequantize(codes, first, scales_,
                                                {.keys = std::span(&rank_key, 1)}, part);
                  if (rank == exchange.rank()) subtract_own(first, part);
                  kernels::scale(part, 1.0f / static_cast<float>(plain_ranks_));
                  const auto y = std::span(y_).subspan(first, codes.size());
                  if (rank == 0) {
                    std::copy(part.begin(), part.end(), y.begin());
                  } else {
                    kernels::add(y, part);
                  }
                  if (rank == plain_ranks_ - 1) {
                    for (float& value : y) value = finite(value);
                  }
                });
  }

  void add_nested(std::span<const std::byte> payload, int rank, const Exchange& exchange,
                  std::span<float> mean) {
    const std::string what = fmt::format("ndqsg payload of rank {}", rank);
    const std::size_t exact_bytes = sample_.size() * sizeof(float);
    if (payload.size() < exact_bytes) {
      throw Error(ErrorCode::bad_frame,
                  fmt::format("{} is cut: it has {} bytes, its sample alone takes {}", what,
                              payload.size(), exact_bytes));
    }
    const auto exact = payload.last(exact_bytes);
    const RandomKey rank_key = key(exchange, rank);
    const float share = 1.0f / static_cast<float>(exchange.size());
    std::size_t next = 0;  // index into the sample
    nested_.read(payload.first(payload.size() - exact_bytes), what, scales_,
                 [&](std::size_t first, std::span<const std::uint32_t> codes) {
                   const auto part = std::span(values_).first(codes.size());
                   options_.quantizer.dequantize(codes, first, scales_,
                                                 {.keys = std::span(&rank_key, 1)}, part);
                   find_values(first, part);
                   for (; next < sample_.size() && sample_[next] < first + codes.size(); ++next) {
                     const auto value = load_value<float>(exact, next * sizeof(float));
                     if (!std::isfinite(value)) {
                       throw Error(
                           ErrorCode::bad_frame,
                           fmt::format("{}: a sampled value is {}, not finite", what, value));
                     }
                     compare(sample_[next], part[sample_[next] - first], value);
                   }
                   if (rank == exchange.rank()) subtract_own(first, part);
                   kernels::scale(part, share);
                   kernels::add(mean.subspan(first, codes.size()), part);
                 });
  }

  // Turns (code - u)*step size into the decoded value, using y.
  void find_values(std::size_t first, std::span<float> values) const {
    options_.quantizer.for_each_block(
        first, values.size(), [&](std::size_t block, std::size_t at, std::size_t run) {
          const float step_size = options_.quantizer.step_size(scales_[block]);
          if (step_size == 0) return;  // a block of zeros
          for (std::size_t i = at; i < at + run; ++i) {
            values[i] = code_.value(values[i], y_[first + i], step_size);
          }
        });
  }

  void compare(std::size_t position, float found, float exact) {
    const float step_size =
        options_.quantizer.step_size(scales_[position / options_.quantizer.block]);
    if (step_size == 0) return;
    const double z = (static_cast<double>(exact) - y_[position]) / step_size;
    ++tried_.samples;
    tried_.failures += code_.failed(found, exact, y_[position], step_size) ? 1 : 0;
    tried_.square_distance += z * z;
  }

  void subtract_own(std::size_t first, std::span<const float> sent) {
    if (!options_.feedback) return;
    for (std::size_t i = 0; i < sent.size(); ++i) error_[first + i] -= sent[i];
  }

  NdqsgOptions options_;
  QuantizedPayload plain_;
  QuantizedPayload nested_;
  SideInformation side_;
  std::vector<float> residual_;
  std::vector<float> error_;  // the next residual, if the exchange succeeds

  // The current step.
  int plain_ranks_ = 1;
  NestedCode code_;
  Trial tried_;
  std::vector<std::size_t> sample_;  // positions of the sample, ascending
  std::vector<float> scales_;
  std::vector<float> y_;  // side information: the mean over the plain ranks
  std::vector<std::byte> payload_;
  std::array<float, kernels::kCodesPerPack> values_{};
};

}  // namespace

MethodInfo ndqsg_info() {
  MethodInfo info;
  info.name = "ndqsg";
  info.wire_id = 6;
  info.algebra = Algebra::staged;
  info.summary =
      "dqsg in which only the plain ranks send full codes; the nested ranks send their codes "
      "modulo "
      "levels/nested, which are decoded with the mean of the plain ranks.";
  info.paper = "Abdi and Fekri 2019, Nested Dithered Quantization for Communication Reduction";
  info.options = {
      OptionInfo::integer(
          "levels", 3, 2, 127,
          "Number of fine quantization levels on one side of zero, so 2*levels + 1 in "
          "total (the paper's M1); must be a multiple of nested and at least "
          "2*nested."),
      OptionInfo::integer("nested", 1, 1, 63,
                          "Number of coarse levels on each side of zero (the paper's M2); nested "
                          "codes take levels/nested values."),
      OptionInfo::number("alpha", 1, 0.5, 1,
                         "Weight of a nested rank's own value against the mean of the plain ranks. "
                         "auto: chosen in every step from measured distances between the two.")
          .or_word("auto"),
      OptionInfo::number("plain_fraction", 0.5, 0, 1,
                         "Fraction of the ranks that send plain codes, from which the others' "
                         "nested codes are decoded; at least one rank does.")
          .formerly("share"),
      block_option(512),
      OptionInfo::number("failures", 0.01, 0, 1,
                         "Tolerated fraction of nested values that are decoded wrongly; above it, "
                         "a bucket sends plain codes for some steps."),
      entropy_option(),
      feedback_option(),
  };
  info.check = [](const Options& options) {
    const long long levels = options.integer("levels");
    const long long nested = options.integer("nested");
    if (levels % nested != 0 || levels == nested) {
      throw Error(
          ErrorCode::bad_spec,
          fmt::format("ndqsg: levels must be a multiple of nested and at least 2*nested "
                      "(got levels={}, nested={}); use levels={}",
                      levels, nested, nested * std::max(2LL, (levels + nested - 1) / nested)));
    }
  };
  info.make = [](const Options& options, const MethodSetup& setup) -> std::unique_ptr<Method> {
    const auto levels = static_cast<std::uint32_t>(options.integer("levels"));
    check_quantizer("ndqsg", setup, levels);
    NdqsgOptions settings;
    settings.quantizer = {.elements = setup.layout.elements,
                          .block = static_cast<std::size_t>(options.integer("block")),
                          .levels_per_side = levels};
    settings.ratio = levels / static_cast<std::uint32_t>(options.integer("nested"));
    settings.side.max_failures = options.number("failures");
    if (options.text("alpha") == "auto") {
      settings.side.learns_alpha = true;
    } else {
      settings.side.alpha = options.number("alpha");
    }
    const double group = std::round(options.number("plain_fraction") * setup.world);
    settings.first_group = std::max(1, static_cast<int>(group));
    settings.entropy = options.on("entropy");
    settings.feedback = options.on("feedback");
    settings.seed = setup.seed;
    return std::make_unique<Ndqsg>(settings);
  };
  return info;
}

}  // namespace thinreduce
