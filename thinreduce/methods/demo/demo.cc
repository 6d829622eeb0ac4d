#include "thinreduce/methods/demo/demo.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/collective/shared_loops.h"
#include "thinreduce/ensure.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/block_transform.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/method/limits.h"
#include "thinreduce/methods/demo/cosines.h"
#include "thinreduce/methods/topk/chunk_payload.h"

namespace thinreduce {
namespace {

struct DemoOptions {
  float beta = 0.999F;
  std::size_t chunk = 1024;
  double density = 0.05;
  bool two_bits = true;  // per coefficient, instead of a float
  bool sign = false;     // reduce() gives the signs of the mean
};

// Momentum from here on could overflow in a transform: no sum within the transform of a chunk,
// which has at most 2^14 elements, and of its inverse is more than 2^14 times the largest element.
constexpr float kHuge = 0x1p106F;

void take_signs(std::span<float> values) {
  for (float& value : values) value = value > 0 ? 1.0F : value < 0 ? -1.0F : 0.0F;
}

// One step, with momentum m and gradient g of this rank:
//   m = m + g
//   sent = the coefficients of largest magnitude in each chunk of DCT(m), as the others read them
//   the mean is the inverse DCT of the mean of all ranks' `sent`
//   m = beta * (m - inverse DCT(sent))
// The paper multiplies by beta at the start of the next step instead. At the end, a step that fails
// loses nothing.
class Demo final : public Method {
 public:
  Demo(const BucketLayout& layout, const DemoOptions& options)
      : options_(options),
        cosines_(layout, options.chunk),
        shape_(chunks_of(layout, cosines_.size(), options)),
        payload_(shape_, options.two_bits),
        momentum_(layout.elements),
        coefficients_(cosines_.size()) {}

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == momentum_.size(), "demo: the bucket must keep its size",
           bucket.values.size(), momentum_.size());
    exchange.timed(Stage::encode, [&] { encode(bucket.values, exchange.workers); });
    payload_.exchange(exchange, coefficients_);
    exchange.timed(Stage::decode, [&] {
      write_mean(exchange, bucket.values);
      // The coefficients are delivered; until here the momentum still held them.
      settle(exchange.workers);
    });
  }

  void add_residual(std::span<float> values) override { kernels::add(values, momentum_); }
  void finish_uncompressed(std::span<float> means) override {
    if (options_.sign) take_signs(means);
  }
  void state(Archive& archive) override { archive.summed("residual", momentum_); }

 private:
  // Returns the chunks of `coefficients`, which include the padding.
  static TopKChunkShape chunks_of(BucketLayout layout, std::size_t coefficients,
                                  const DemoOptions& options) {
    layout.elements = coefficients;
    require_32bit_indices("demo", layout);
    return {.elements = coefficients, .chunk = options.chunk, .density = options.density};
  }

  void encode(std::span<const float> gradient, Workers workers) {
    add(workers, momentum_, gradient);
    if (largest_magnitude(workers, momentum_) < kHuge) {
      cosines_.forward(momentum_, coefficients_, workers);
    } else {
      // Every rank refuses a payload of NaN.
      fill(workers, coefficients_, std::numeric_limits<float>::quiet_NaN());
    }
    workers.for_blocks(payload_.blocks(), [&](std::size_t block, std::size_t /*thread*/) {
      payload_.encode(block, part(block));
    });
  }

  void write_mean(Exchange& exchange, std::span<float> values) {
    const auto copy = [&](std::size_t offset, std::span<const float> floats) {
      std::ranges::copy(floats, values.begin() + static_cast<std::ptrdiff_t>(offset));
    };
    cosines_.inverse(coefficients_, copy, exchange.workers);
    require_finite_sum(exchange, values, "element");
    if (options_.sign) take_signs(values);
  }

  void settle(Workers workers) {
    fill(workers, coefficients_, 0);
    for (std::size_t block = 0; block < payload_.blocks(); ++block) {
      payload_.add_sent(block, part(block));
    }
    const auto subtract = [&](std::size_t offset, std::span<const float> floats) {
      for (std::size_t i = 0; i < floats.size(); ++i) momentum_[offset + i] -= floats[i];
    };
    cosines_.inverse(coefficients_, subtract, workers);
    if (options_.beta != 1) scale(workers, momentum_, options_.beta);
  }

  [[nodiscard]] std::span<float> part(std::size_t block) {
    const Range own = shape_.block(block);
    return std::span(coefficients_).subspan(own.begin, own.size());
  }

  DemoOptions options_;
  Cosines cosines_;
  TopKChunkShape shape_;
  TopKChunkPayload payload_;
  std::vector<float> momentum_;
  std::vector<float> coefficients_;  // of the momentum, then of the mean, then the sent ones
};

DemoOptions read_options(const Options& options) {
  return {.beta = static_cast<float>(options.number("beta")),
          .chunk = static_cast<std::size_t>(options.integer("chunk")),
          .density = options.number("density"),
          .two_bits = options.text("values") == "2bit",
          .sign = options.on("sign")};
}

std::vector<OptionInfo> option_infos() {
  return {
      OptionInfo::number("beta", 0.999, 0, 1,
                         "Each rank's momentum is multiplied by this factor before the step's "
                         "gradient is added to it; 1: nothing is ever lost."),
      OptionInfo::number("density", 0.05, 1e-6, 1,
                         "Fraction of each chunk's coefficients that each rank sends per step; at "
                         "least one is sent."),
      OptionInfo::integer("chunk", 1024, kernels::kMinBlock, kernels::kMaxBlock,
                          "Elements per chunk, which is transformed as a whole; must be a power of "
                          "two."),
      OptionInfo::choice("values", "2bit", {"f32", "2bit"},
                         "Encoding of a sent coefficient. f32: the coefficient itself. 2bit: its "
                         "sign and one of two magnitudes per chunk; the difference stays in the "
                         "momentum."),
      OptionInfo::on_off("sign", false,
                         "on: returns the signs of the mean, as in the paper, so the method is "
                         "the optimizer and needs plain SGD without momentum. off: returns the "
                         "mean, for any optimizer."),
  };
}

}  // namespace

MethodInfo demo_info() {
  MethodInfo info;
  info.name = "demo";
  info.wire_id = 13;
  info.algebra = Algebra::gather;
  info.summary =
      "Each rank adds its gradient to a momentum of its own, sends the momentum's largest DCT "
      "coefficients and subtracts them from it.";
  info.paper = "Peng et al. 2024, DeMo: Decoupled Momentum Optimization, arXiv 2411.19870";
  info.options = option_infos();
  info.presets = {
      {"paper", "density=0.0078125,chunk=4096,values=f32,sign=on",
       "Sends 32 coefficients per chunk of 4096 as floats; plain SGD applies the signs of "
       "the mean."}};
  info.check = [](const Options& options) {
    const auto chunk = static_cast<std::size_t>(options.integer("chunk"));
    if (std::has_single_bit(chunk)) return;
    throw Error(ErrorCode::bad_spec,
                fmt::format("demo: chunk must be a power of two (got {})", chunk));
  };
  info.update = [](const Options& options) {
    return options.on("sign") ? std::optional<Update>({.signs = true, .without = "sign=off"})
                              : std::nullopt;
  };
  info.losses = [](const Options& options) { return Losses{.decay = options.number("beta")}; };
  info.make = [](const Options& options, const MethodSetup& setup) {
    return std::make_unique<Demo>(setup.layout, read_options(options));
  };
  return info;
}

}  // namespace thinreduce
