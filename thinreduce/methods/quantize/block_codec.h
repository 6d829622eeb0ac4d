// Quantizes a run of floats into one rank's payload, and decodes payloads.
//
// Stochastic rounding has errors larger than the values when levels are few: unbiased, but as a
// residual they would grow without bound. With feedback, each block's scale is therefore replaced
// by the one that brings the codes nearest to the values. The values are then their own projection
// onto the codes, and the errors, which the residual keeps, are never larger than the values.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
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
        bucket_(quantizer.grid),
        quantizer_(quantizer),
        payload_({quantizer.elements(), quantizer.blocks(), quantizer.symbols(), options.entropy}),
        scales_(quantizer.blocks()) {}

  [[nodiscard]] std::size_t limit() const { return payload_.limit(); }
  [[nodiscard]] std::span<const float> scales() const { return scales_; }

  // A run of the bucket.
  struct Run {
    std::size_t first = 0;
    BlockGrid grid;
  };
  [[nodiscard]] Run run_of(std::size_t first, std::size_t elements) const {
    return {first, bucket_.part(first, elements)};
  }
  // Quantizes elements [first, first + elements) of the bucket from now on, as a run of their own:
  // blocks start anew, and the random draws are those of the elements in the bucket.
  void move_to(std::size_t first, std::size_t elements) { move_to(run_of(first, elements)); }
  // Allocates nothing if the codec was at this run before.
  void move_to(Run run) {
    quantizer_.first_draw = run.first;
    quantizer_.grid = std::move(run.grid);
    scales_.resize(quantizer_.blocks());
    payload_.resize(quantizer_.elements(), quantizer_.blocks());
  }
  // Makes room for keep_error() of the run.
  void reserve_error() { codes_.reserve(quantizer_.elements()); }
  // Returns limit() for such a run.
  [[nodiscard]] std::size_t limit_of(std::size_t first, std::size_t elements) const {
    return payload_.limit(elements, bucket_.part(first, elements).blocks());
  }

  // Replaces `out` by the payload of `values`.
  void write(std::span<const float> values, RandomKey key, std::vector<std::byte>& out) {
    out.clear();
    append(values, key, out);
  }
  void append(std::span<const float> values, RandomKey key, std::vector<std::byte>& out) {
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
  // Calls sink(first, values) with the decoded values, piece by piece. Allocates nothing where it
  // reads a payload that it has written or read before.
  template <typename Sink>
  void read(std::span<const std::byte> bytes, const Reading& reading, Sink&& sink) {
    const BlockQuantizer::Sum sum = one_rank(reading.key, reading.factor);
    const auto into = reading.into;
    const auto on_codes = [&](std::size_t first, std::span<const std::uint32_t> codes) {
      const auto values =
          into.empty() ? std::span(values_).first(codes.size()) : into.subspan(first, codes.size());
      quantizer_.dequantize(codes, first, scales_, sum, values);
      sink(first, std::span<const float>(values));
    };
    payload_.read(bytes, reading.what, scales_, std::ref(on_codes));
  }

  // Subtracts the values that write() sends for `values`, so that the error is left. Quantizes them
  // again, which is faster than to read a payload. Allocates nothing after reserve_error().
  void keep_error(std::span<float> values, RandomKey key) {
    measure(values, 0, values.size());
    codes_.resize(values.size());
    quantizer_.quantize(values, 0, scales_, key, codes_);
    if (fits_scales()) fit_scales(values, 0, codes_);
    const BlockQuantizer::Sum sum = one_rank(key, 1);
    for (std::size_t first = 0; first < values.size(); first += values_.size()) {
      const auto part = values.subspan(first, std::min(values_.size(), values.size() - first));
      const auto sent = std::span(values_).first(part.size());
      quantizer_.dequantize(std::span(codes_).subspan(first, part.size()), first, scales_, sum,
                            sent);
      for (std::size_t i = 0; i < part.size(); ++i) part[i] -= sent[i];
    }
  }
  // Subtracts the part of `values` that is not clipped.
  void keep_clipped(std::span<float> values) {
    measure(values, 0, values.size());
    quantizer_.keep_clipped(values, scales_);
  }

 private:
  // Describes codes of one rank, with its dither to subtract where the rounding needs it.
  [[nodiscard]] BlockQuantizer::Sum one_rank(const RandomKey& key, float factor) const {
    BlockQuantizer::Sum sum;
    sum.factor = factor;
    if (options_.rounding == QuantizedGatherOptions::Rounding::dithered)
      sum.keys = std::span(&key, 1);
    return sum;
  }

  [[nodiscard]] bool fits_scales() const {
    return options_.feedback && options_.rounding == QuantizedGatherOptions::Rounding::stochastic;
  }

  // Replaces the scales of the blocks that end here.
  void fit_scales(std::span<const float> values, std::size_t first,
                  std::span<const std::uint32_t> codes) {
    quantizer_.grid.for_each_block(
        first, values.size(), [&](std::size_t index, std::size_t at, std::size_t run) {
          if (quantizer_.grid.begins_at(first + at)) fit_ = {};
          quantizer_.add_fit(values.subspan(at, run), codes.subspan(at, run), fit_);
          const std::size_t end = first + at + run;
          if (!quantizer_.grid.begins_at(end) && end != quantizer_.elements()) return;
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
  BlockGrid bucket_;
  BlockQuantizer quantizer_;  // of the bucket, or of a run of it
  QuantizedPayload payload_;
  std::vector<float> scales_;
  BlockQuantizer::Fit fit_;           // of the block that is being written
  std::vector<std::uint32_t> codes_;  // of the run whose error is kept
  std::array<float, kernels::kCodesPerPack> values_{};
};

}  // namespace thinreduce
