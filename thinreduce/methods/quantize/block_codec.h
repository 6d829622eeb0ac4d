// Quantizes a run of floats into one rank's payload, and decodes payloads.
//
// Stochastic rounding has errors larger than the values when levels are few: unbiased, but as a
// residual they would grow without bound. With feedback, each block's scale is therefore replaced
// by the one that brings the codes nearest to the values. The values are then their own projection
// onto the codes, and the errors, which the residual keeps, are never larger than the values.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/methods/quantize/quantized_gather.h"
#include "thinreduce/methods/quantize/quantized_payload.h"
#include "thinreduce/wire/random.h"

namespace thinreduce {

// `options` must outlive the codec; its own quantizer is not used.
class BlockCodec {
 public:
  BlockCodec(const QuantizedGatherOptions& options, const BlockQuantizer& quantizer)
      : options_(options),
        quantizer_(quantizer),
        payload_({quantizer.elements, quantizer.blocks(), quantizer.symbols(), options.entropy}),
        scales_(quantizer.blocks()) {}

  [[nodiscard]] std::size_t limit() const { return payload_.limit(); }
  [[nodiscard]] std::span<const float> scales() const { return scales_; }

  // Replaces `out` by the payload of `values`.
  void write(std::span<const float> values, RandomKey key, std::vector<std::byte>& out) {
    out.clear();
    payload_.write(
        scales_,
        [&](std::size_t first, std::span<std::uint32_t> codes) {
          measure(values, first, codes.size());
          const auto part = values.subspan(first, codes.size());
          quantizer_.quantize(part, first, scales_, key, codes);
          if (fits_scales()) fit_scales(part, first, codes);
        },
        out);
  }

  // How to read a payload.
  struct Reading {
    std::string what;  // names the payload in errors
    RandomKey key;
    float factor = 1;            // the decoded values are multiplied by it
    std::span<float> into = {};  // gets the values; empty: only the sink sees them
  };
  // Calls sink(first, values) with the decoded values, piece by piece.
  template <typename Sink>
  void read(std::span<const std::byte> bytes, const Reading& reading, Sink&& sink) {
    BlockQuantizer::Sum sum;
    sum.factor = reading.factor;
    if (options_.rounding == QuantizedGatherOptions::Rounding::dithered)
      sum.keys = std::span(&reading.key, 1);
    const auto into = reading.into;
    payload_.read(bytes, reading.what, scales_,
                  [&](std::size_t first, std::span<const std::uint32_t> codes) {
                    const auto values = into.empty() ? std::span(values_).first(codes.size())
                                                     : into.subspan(first, codes.size());
                    quantizer_.dequantize(codes, first, scales_, sum, values);
                    sink(first, std::span<const float>(values));
                  });
  }

 private:
  [[nodiscard]] bool fits_scales() const {
    return options_.feedback && options_.rounding == QuantizedGatherOptions::Rounding::stochastic;
  }

  // Replaces the scales of the blocks that end here.
  void fit_scales(std::span<const float> values, std::size_t first,
                  std::span<const std::uint32_t> codes) {
    quantizer_.for_each_block(
        first, values.size(), [&](std::size_t index, std::size_t at, std::size_t run) {
          if ((first + at) % quantizer_.block == 0) fit_ = {};
          quantizer_.add_fit(values.subspan(at, run), codes.subspan(at, run), fit_);
          const std::size_t end = first + at + run;
          if (end % quantizer_.block != 0 && end != quantizer_.elements) return;
          scales_[index] = quantizer_.fitted_scale(fit_, scales_[index]);
        });
  }

  // Measures the blocks that begin here, while their values are in the cache.
  void measure(std::span<const float> values, std::size_t first, std::size_t count) {
    if (options_.scale == QuantizedGatherOptions::Scale::norm) {
      quantizer_.measure_norm_from(values, first, count, scales_);
    } else {
      quantizer_.measure_from(values, first, count, options_.clip, scales_);
    }
  }

  const QuantizedGatherOptions& options_;
  BlockQuantizer quantizer_;
  QuantizedPayload payload_;
  std::vector<float> scales_;
  BlockQuantizer::Fit fit_;  // of the block that is being written
  std::array<float, kernels::kCodesPerPack> values_{};
};

}  // namespace thinreduce
