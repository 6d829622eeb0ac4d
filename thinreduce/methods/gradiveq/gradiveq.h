// GradiVeQ: projects slices of neighbouring gradients onto the few directions in which they vary
// most, and sums the projections inside a pipelined collective. docs/methods/gradiveq.md explains
// it; gradiveq.cc reads as the algorithm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "thinreduce/collective/choose.h"
#include "thinreduce/method/method.h"
#include "thinreduce/methods/quantize/quantized_gather.h"

namespace thinreduce {

struct GradiveqSettings {
  std::size_t slice = 0;        // floats per slice; 0: from the tensor's shape
  std::string layout = "auto";  // see slicing.h
  double energy = 0;  // min fraction of the samples' energy that is kept; 0: ratio decides
  double ratio = 8;   // input floats per float sent, including slices sent whole

  bool phases = false;  // the paper's schedule; otherwise some slices are sampled in every step
  std::uint64_t warmup = 4;      // uncompressed steps at the start
  std::uint64_t collect = 100;   // phases: uncompressed steps per cycle
  std::uint64_t interval = 100;  // steps between two bases of a layer

  double sample = 0.004;  // fraction of the slices that is sampled per step
  double flush = 0.02;    // fraction of the slices that is sent whole with its residual per step
  double trigger = 0.5;   // loss above which a rank votes for a new basis
  bool feedback = true;   // false with `phases`

  // The method that quantizes the projections, the second one of a spec such as gradiveq+dqsg:
  // dithered codes are summed, others gathered. None: projections are sent as floats.
  std::optional<QuantizedGatherOptions> quantizer;
  // Sums the payload; tests replace it.
  std::function<void(Exchange&, SumCodec&)> sum = [](Exchange& exchange, SumCodec& codec) {
    all_reduce(exchange, codec);
  };

  // Returns the number of uncompressed steps before the first, or another, compressed step.
  [[nodiscard]] std::uint64_t uncompressed_steps(bool first) const;
};

// Throw Error{bad_spec} for options that contradict each other, or cannot serve projections.
[[nodiscard]] GradiveqSettings gradiveq_settings(const Options& options);
[[nodiscard]] QuantizedGatherOptions projection_quantizer(const InnerMethod& inner);
[[nodiscard]] std::unique_ptr<Method> make_gradiveq(const GradiveqSettings& settings,
                                                    const MethodSetup& setup);
[[nodiscard]] MethodInfo gradiveq_info();

}  // namespace thinreduce
