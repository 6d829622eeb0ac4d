#include "thinreduce/methods/gradiveq/projections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/collective/gather.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/quantize/options.h"
#include "thinreduce/methods/quantize/stream_keys.h"

namespace thinreduce {
namespace {

// Adds up in an order that does not depend on the vector width. `exponent` is
// subtracted from those of `a` and `b`.
float bounded_dot(std::span<const float> a, std::span<const float> b, int exponent) {
  constexpr double kMax = 1e30;
  std::array<double, 8> sums{};
  for (std::size_t i = 0; i < a.size(); ++i) {
    sums[i % 8] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return static_cast<float>(std::clamp(std::ldexp(sum, -2 * exponent), -kMax, kMax));
}

// Returns the power of two by which huge projections are divided, so that their products are
// floats; 0 for all others. All ranks know the largest scale.
int common_exponent(float largest_scale) {
  constexpr float kHuge = 1e10F;
  return largest_scale > kHuge ? std::ilogb(largest_scale) : 0;
}

}  // namespace

QuantizedProjections::QuantizedProjections(const QuantizedGatherOptions& options,
                                           GradiveqState& state, const MethodSetup& setup)
    : options_(options), layers_(state.layers), seed_(setup.seed), bucket_(setup.layout.id) {
  check_quantizer("gradiveq+" + options.name, setup, options.quantizer.levels_per_side);
}

void QuantizedProjections::start() {
  begin_.assign(1, 0);
  for (const GradiveqLayer& layer : layers_) {
    begin_.push_back(begin_.back() + layer.sent_as.size() * layer.basis.size());
  }
  own_.assign(begin_.back(), 0.0f);  // zeros stay where slices are sent whole
  if (codec_ && sum_.size() == own_.size()) return;
  for (auto* values : {&sum_, &sent_}) values->assign(own_.size(), 0.0f);
  BlockQuantizer& blocks = options_.quantizer;
  blocks.grid = {begin_.back(), blocks.grid.block()};
  scales_.resize(blocks.blocks());
  codec_.emplace(options_, blocks);
}

void QuantizedProjections::clear_whole_slices() {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const GradiveqLayer& layer = layers_[l];
    for (std::size_t slice = 0; slice < layer.sent_as.size(); ++slice) {
      const SentAs sent_as = layer.sent_as[slice];
      if (sent_as == SentAs::projection) continue;
      for_projections(layer, layer.slicing().places_of(slice), [&](std::size_t i, std::size_t) {
        own_[begin_[l] + i] = sent_as == SentAs::sample ? layer.owed[i] : 0;
        sent_[begin_[l] + i] = 0;
      });
    }
  }
}

void QuantizedProjections::exchange(std::uint64_t step, Exchange& exchange,
                                    std::span<float> moments) {
  stream_keys(seed_, {.bucket = bucket_, .step = step}, exchange.size(), keys_);
  const bool summed = options_.rounding == QuantizedGatherOptions::Rounding::dithered;
  if (!own_.empty()) summed ? sum_codes(exchange) : gather_codes(exchange);
  if (!feedback()) return;
  exchange.timed(Stage::encode, [&] {
    clear_whole_slices();
    const int exponent = common_exponent(largest_scale_);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const std::size_t floats = begin_[l + 1] - begin_[l];
      const auto own = std::span<const float>(own_).subspan(begin_[l], floats);
      const auto sent = std::span<const float>(sent_).subspan(begin_[l], floats);
      moments[2 * l] = bounded_dot(own, sent, exponent);
      moments[2 * l + 1] = bounded_dot(sent, sent, exponent);
    }
  });
}

// All ranks agree on the scales first, so that the codes can be added.
void QuantizedProjections::sum_codes(Exchange& exchange) {
  exchange.timed(Stage::encode, [&] { options_.quantizer.measure(own_, 0, 0, scales_); });
  agree_on_maxima(exchange, scales_, own_scales_, "block");
  largest_scale_ = kernels::largest_magnitude(scales_);
  DitheredSum codes({.quantizer = options_.quantizer,
                     .source = own_,
                     .mean = sum_,
                     .scales = scales_,
                     .keys = keys_,
                     .rank = exchange.rank()},
                    buffers_);
  all_reduce(exchange, codes);
  exchange.timed(Stage::decode, [&] {
    kernels::scale(sum_, static_cast<float>(exchange.size()));
    std::fill(sent_.begin(), sent_.end(), 0.0f);
    codes.subtract_own(sent_);
    kernels::scale(sent_, -1.0f);
  });
}

// Every rank has its own scales and decodes all payloads.
void QuantizedProjections::gather_codes(Exchange& exchange) {
  const auto own_rank = static_cast<std::size_t>(exchange.rank());
  exchange.timed(Stage::encode, [&] { codec_->write(own_, keys_[own_rank], payload_); });
  largest_scale_ = 0;
  gather(exchange, payload_, codec_->limit(), [&](int rank, std::span<const std::byte> payload) {
    codec_->read(payload,
                 {.what = fmt::format("gradiveq+{} payload of rank {}", options_.name, rank),
                  .key = keys_[static_cast<std::size_t>(rank)],
                  .into = rank == 0 ? std::span(sum_) : std::span<float>()},
                 [&](std::size_t first, std::span<const float> values) {
                   if (rank > 0)
                     kernels::add(std::span(sum_).subspan(first, values.size()), values);
                   if (rank == exchange.rank()) std::ranges::copy(values, &sent_[first]);
                 });
    largest_scale_ = std::max(largest_scale_, kernels::largest_magnitude(codec_->scales()));
  });
}

void QuantizedProjections::finish(std::span<const float> moment_sums, const Exchange& exchange) {
  require_finite_sum(exchange, sum_, "projection");
  require_finite_sum(exchange, moment_sums, "moment of the projections");
  for (std::size_t l = 0; l < layers_.size() && feedback(); ++l) {
    const float wanted = moment_sums[2 * l];
    const float sent = moment_sums[2 * l + 1];
    const float factor = sent > 0 ? std::clamp(wanted / sent, 0.0f, 1.0f) : 1.0f;
    for (std::size_t i = begin_[l]; i < begin_[l + 1]; ++i) {
      sum_[i] *= factor;
      sent_[i] *= factor;
    }
  }
}

void QuantizedProjections::keep_errors() {
  for (std::size_t l = 0; l < layers_.size() && feedback(); ++l) {
    for (std::size_t i = 0; i < layers_[l].owed.size(); ++i) {
      layers_[l].owed[i] = own_[begin_[l] + i] - sent_[begin_[l] + i];
    }
  }
}

}  // namespace thinreduce
