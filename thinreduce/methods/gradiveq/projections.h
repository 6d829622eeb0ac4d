// GradiVeQ's projections when another method quantizes them: what this rank wants to send, what it
// still owes of earlier steps, and what came out.
//
// Projections are kept coordinate by coordinate of a layer, all slices of the first, then of the
// second: coordinates differ in size by orders of magnitude, so that the elements that share a step
// should be of one.
//
// With feedback, what comes out is shrunk by the factor between 0 and 1 that is nearest to what the
// ranks wanted to send, one for each layer. What is owed is thus never more than what was wanted,
// however coarse the quantizer, and so does not grow without bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/methods/gradiveq/layer.h"
#include "thinreduce/methods/gradiveq/quantizer.h"

namespace thinreduce {

class Archive;

class GradiveqProjections {
 public:
  struct Settings {
    MakeProjectionQuantizer make;
    bool feedback = true;
  };
  GradiveqProjections(const Settings& settings, const MethodSetup& setup)
      : settings_(settings), setup_(setup) {}

  // Must be called when a layer's cut or basis has changed; that layer owes nothing then.
  void arrange(std::span<const GradiveqLayer> layers);

  // Of `count` slices of a layer, projections one after another.
  struct Run {
    std::size_t layer = 0;
    std::size_t slice = 0;
    std::size_t count = 0;
  };
  // What this rank sends: `tile`, and what it owes.
  void send(const Run& run, std::span<const float> tile);
  // A slice that travels whole has no projection in this step.
  void skip(const Run& run);
  // The sum over the ranks, after finish().
  void sum(const Run& run, std::span<float> tile) const;
  void owed(const Run& run, std::span<float> tile) const;
  void forget_owed(const Run& run);

  // Floats that the ranks must sum between exchange() and finish(): two a layer, or none.
  [[nodiscard]] std::size_t moments() const { return settings_.feedback ? 2 * layers_.size() : 0; }
  // Sends everything; `whole` are the slices that were skipped, and so stay owed.
  void exchange(std::span<const std::vector<WholeSlice>> whole, std::uint64_t step,
                Exchange& exchange, std::span<float> moments);
  [[nodiscard]] bool finite() const;
  // Nothing is delivered, and nothing is owed less, before this.
  void finish(std::span<const float> moment_sums);

  // Throws Error{bad_state} for projections of other bases.
  void state(Archive& archive);

 private:
  template <typename Visit>
  void for_runs(const Run& run, Visit visit) const;

  Settings settings_;
  MethodSetup setup_;
  std::span<const GradiveqLayer> layers_;
  std::vector<std::size_t> begin_;  // of each layer; one more
  std::unique_ptr<ProjectionQuantizer> quantizer_;
  std::vector<float> own_, sum_, sent_;
  std::vector<std::vector<float>> owed_;  // of each layer; empty without feedback
};

}  // namespace thinreduce
