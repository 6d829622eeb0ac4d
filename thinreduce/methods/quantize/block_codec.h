// One rank's quantizer of a run of floats: a grid, the payload that it writes and reads, and the
// scales.
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

// `options` must stay in place; its own grid does not matter.
class BlockCodec {
 public:
  BlockCodec(const QuantizedGatherOptions& options, const BlockQuantizer& grid)
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

  // Whose payload it is, and what is wanted of it.
  struct Reading {
    std::string what;
    RandomKey key;
    float share = 1;             // by which the values are multiplied
    std::span<float> into = {};  // where to put them; empty: the sink does something else with them
  };
  // Calls sink(first, values) for the decoded values, piece by piece.
  template <typename Sink>
  void read(std::span<const std::byte> bytes, const Reading& reading, Sink&& sink) {
    BlockQuantizer::Sum sum;
    sum.share = reading.share;
    if (options_.rounding == QuantizedGatherOptions::Rounding::dithered)
      sum.keys = std::span(&reading.key, 1);
    const auto into = reading.into;
    payload_.read(bytes, reading.what, scales_,
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
    if (options_.scale == QuantizedGatherOptions::Scale::norm) {
      grid_.measure_norm_from(values, first, count, scales_);
    } else {
      grid_.measure_from(values, first, count, options_.clip, scales_);
    }
  }

  const QuantizedGatherOptions& options_;
  BlockQuantizer grid_;
  QuantizedPayload payload_;
  std::vector<float> scales_;
  std::array<float, kernels::kPackUnit> values_{};
};

}  // namespace thinreduce
