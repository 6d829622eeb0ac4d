// One tensor as GradiVeQ treats it, and all of a bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/methods/gradiveq/basis.h"
#include "thinreduce/methods/gradiveq/gradiveq.h"
#include "thinreduce/methods/gradiveq/slicing.h"

namespace thinreduce {

// How elements are sent in a compressed step.
enum class SentAs : std::uint8_t {
  projection,  // of a slice
  sample,      // a whole slice: the gradient alone, for the statistics
  flush,       // a whole slice: the gradient and its residual
  unsliced,    // elements outside slices or without a basis: the gradient and its residual
  votes,       // no elements: the votes for new bases
};

// Everything that the method knows about a tensor, except for the mean and the residual of its
// elements.
struct GradiveqLayer {
  // Max of `lost` and `energy`: the energy of a gradient near the largest float is not a float.
  static constexpr float kMaxEnergy = 1e36F;

  std::string name;
  std::size_t number = 0;           // in the bucket
  std::vector<Slicing> candidates;  // the orders to try; without slices: never compressed
  bool is_keeper = false;           // this rank keeps the statistics and computes the basis
  bool quantized = false;           // `owed` is kept

  std::size_t chosen = 0;  // in candidates
  bool decided = false;    // the samples have decided `chosen`, for the rest of the run
  Basis basis;             // size 0: none yet or none that pays; the layer is sent uncompressed
  float mean_weight = 0;   // factor of the mean that is subtracted before slices are projected
  std::uint64_t renewed_at = 0;  // the step of the last new basis
  // True after a new basis: `kept` is the residual, and none of it was sent. False: `kept` is
  // everything since then, of which the part within the basis was sent.
  bool fresh = true;
  // With a quantizer and feedback: errors of this rank's codes, one per projected float, ordered by
  // coordinate, then by slice.
  std::vector<float> owed;

  // The current step.
  std::vector<std::size_t> samples;  // slices, ascending
  std::vector<SentAs> sent_as;       // per slice of a compressed layer
  // Energies of this rank's own samples, fading: the part outside the basis, and all of it.
  float lost = 0;
  float energy = 0;

  // Statistics at the keeper. Until the samples have decided on a candidate, every other step of
  // samples tests the basis that the others give.
  struct Evidence {
    SliceStatistics fit;
    SliceStatistics test;
  };
  std::vector<Evidence> evidence;  // per candidate; one after the decision
  // Sums over samples of <sum, mean> and <mean, mean>: how well the mean predicts.
  double agreement = 0;
  double strength = 0;

  [[nodiscard]] const Slicing& slicing() const { return candidates[chosen]; }
  [[nodiscard]] bool compressed() const { return basis.size() > 0; }
  // Returns this rank's vote: whether it wants a new basis, because it loses too much.
  [[nodiscard]] bool votes(double trigger) const {
    return compressed() && lost > static_cast<float>(trigger) * energy;
  }

  // Returns as many zeros as a layer that is cut so has errors of codes.
  [[nodiscard]] std::vector<float> no_errors(const Slicing& slicing, std::size_t size) const {
    return std::vector<float>(quantized ? slicing.slices() * size : 0);
  }
  void state(Archive& archive);

 private:
  // Throws Error{bad_state} unless they fit the layer.
  void load_basis(std::span<const float> columns, std::size_t size, std::vector<float> errors);
};

// Max slices per call of the kernels: their working set stays in the cache.
inline constexpr std::size_t kRunSlices = 32;
// Floats of a unit on the wire, about: few compared with a segment, many compared with a call.
inline constexpr std::size_t kUnitFloats = 1024;

// Memory for a run of slices, per thread.
struct GradiveqScratch {
  std::vector<float> values, mean, kept, slices, projections;
};

// What the parts of the method share: the options, the layers of a bucket, and one float per
// element.
struct GradiveqState {
  GradiveqState(const GradiveqSettings& settings, const MethodSetup& setup);

  const GradiveqSettings settings;
  const std::uint64_t seed;
  const std::uint64_t bucket;
  std::vector<GradiveqLayer> layers;  // the tensors, cut in all orders to try
  std::vector<float> mean;            // of the sum over the ranks
  std::vector<float> kept;            // see GradiveqLayer::fresh; empty without feedback
  std::vector<float> samples;         // of one layer, on their way into its statistics
  // By thread. The first has room for a run of slices of every layer: where memory must not run
  // out, nothing is allocated.
  std::vector<GradiveqScratch> scratch{1};
};

// Returns memory for the projections of the slices at `places`.
[[nodiscard]] std::span<float> projections_of(const GradiveqLayer& layer, Range places,
                                              GradiveqScratch& scratch);
// Returns that memory with projections that a layer holds in the order of GradiveqLayer::owed.
[[nodiscard]] std::span<const float> projections_from(const float* by_coordinate,
                                                      const GradiveqLayer& layer, Range places,
                                                      GradiveqScratch& scratch);
// Adds U times the projections, times a factor.
void add_rebuilt(const GradiveqLayer& layer, std::span<const float> projections, float factor,
                 std::span<float> slices, GradiveqScratch& scratch);
// Turns `kept` of the slices at `places` into their residual: subtracts the part within the basis
// if that was sent, and adds the errors of its codes.
void to_residual(const GradiveqLayer& layer, Range places, bool sent, std::span<float> kept,
                 GradiveqScratch& scratch);
// The same for all slices of one layer, and of all layers; `kept` is that of the bucket.
void to_residual(const GradiveqLayer& layer, std::span<float> kept, GradiveqScratch& scratch);
void to_residual(GradiveqState& state, std::span<float> kept);

// Calls visit(index in the layer's projections, index in the tile) for the projections of the
// slices at `places`. A tile is ordered by slice, then by coordinate; GradiveqLayer::owed the other
// way.
template <typename Visit>
void for_projections(const GradiveqLayer& layer, Range places, Visit visit) {
  const std::size_t k = layer.basis.slice();
  const std::size_t size = layer.basis.size();
  const std::size_t slices = layer.slicing().slices();
  const Range range{places.begin / k, places.end / k};
  for (std::size_t j = 0; j < size; ++j) {
    for (std::size_t i = 0; i < range.size(); ++i) {
      visit(j * slices + range.begin + i, i * size + j);
    }
  }
}

}  // namespace thinreduce
