// GradiVeQ: slices of neighbouring gradients are projected onto the few directions in which they
// vary, and the projections are summed inside a pipelined ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "thinreduce/collective/ring.h"
#include "thinreduce/method/method.h"
#include "thinreduce/methods/gradiveq/quantizer.h"

namespace thinreduce {

struct GradiveqSettings {
  // What decides the rank of a basis; the first that is not zero.
  struct RankRule {
    std::size_t rank = 0;
    double energy = 0;  // the least share of the samples' energy that is kept
    double ratio = 8;   // floats for each that is sent, slices that travel whole included
  };
  // When gradients travel uncompressed and when bases are renewed, in steps.
  struct Schedule {
    bool phases = false;  // else running
    std::uint64_t warmup = 4;
    std::uint64_t collect = 100;
    std::uint64_t interval = 100;
    // Phases: uncompressed steps, before samples are collected, for what was held back. It must not
    // enter the mean, which would add it again in every compressed step.
    [[nodiscard]] std::uint64_t returning(bool feedback) const { return feedback ? 1 : 0; }
  };

  std::size_t slice = 0;  // 0: from the layer's shape
  std::string layout = "auto";
  RankRule rule;
  Schedule schedule;
  double sample = 0.004;
  double flush = 0.02;
  double trigger = 0.5;  // 0: never
  bool feedback = true;
  // Quantizes the projections; none: they travel as floats.
  MakeProjectionQuantizer quantizer;
  // The ring of floats; tests replace it.
  std::function<void(Exchange&, RingPayload&)> ring = [](Exchange& exchange, RingPayload& payload) {
    ring_all_reduce(exchange, payload);
  };
};

[[nodiscard]] std::unique_ptr<Method> make_gradiveq(const GradiveqSettings& settings,
                                                    const MethodSetup& setup);
// Throws Error{bad_spec} for options that contradict each other.
[[nodiscard]] GradiveqSettings gradiveq_settings(const Options& options);
[[nodiscard]] MethodInfo gradiveq_info();

}  // namespace thinreduce
