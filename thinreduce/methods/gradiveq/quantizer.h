// How GradiVeQ's projections travel when another method quantizes them: dqsg's codes add as
// integers inside a ring, qsgd's payloads are gathered.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/method/method.h"

namespace thinreduce {

// Keeps nothing from step to step but buffers.
class ProjectionQuantizer {
 public:
  ProjectionQuantizer() = default;
  ProjectionQuantizer(const ProjectionQuantizer&) = delete;
  ProjectionQuantizer& operator=(const ProjectionQuantizer&) = delete;
  virtual ~ProjectionQuantizer() = default;

  // All of the same length.
  struct Parts {
    std::span<const float> own;  // what this rank has
    std::span<float> sum;        // out: over the ranks of what they sent; the same bits everywhere
    std::span<float> sent;       // out: this rank's part of the sum
  };
  // `step` names the random numbers.
  virtual void reduce(const Parts& parts, std::uint64_t step, Exchange& exchange) = 0;
};

// For so many floats.
using MakeProjectionQuantizer =
    std::function<std::unique_ptr<ProjectionQuantizer>(std::size_t elements, const MethodSetup&)>;

// Throws Error{bad_spec} for options that make no sense for projections. `feedback`: whether what
// is not sent is kept.
[[nodiscard]] MakeProjectionQuantizer projection_quantizer(const InnerMethod& inner, bool feedback);

}  // namespace thinreduce
