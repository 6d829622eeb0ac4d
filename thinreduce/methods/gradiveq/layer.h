// One tensor as GradiVeQ treats it. GradiVeQ owns the layers of its bucket; they hold everything
// that the method knows about a tensor, except for the mean and the residual of its elements.
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

struct GradiveqLayer {
  // Max of `lost` and `energy`: the energy of a gradient near the largest float is not a float.
  static constexpr float kMaxEnergy = 1e36F;

  std::string name;
  std::vector<Slicing> candidates;  // the orders to try; without slices: never compressed
  std::size_t chosen = 0;           // in candidates
  bool decided = false;             // the samples have decided `chosen`, for the rest of the run
  bool owned = false;               // this rank keeps the statistics and computes the basis
  bool quantized = false;           // `owed` is kept

  // Size 0: the layer is sent uncompressed, because it has no basis yet or none that pays.
  Basis basis;
  // The factor of the mean that is subtracted before slices are projected.
  float mean_weight = 0;
  // True after a new basis: `kept` is the residual, and none of it was sent. False: `kept` is
  // everything since then, of which the part within the basis was sent.
  bool fresh = true;
  std::uint64_t renewed_at = 0;  // the step of the last new basis
  // With a quantizer and feedback: errors of this rank's codes, one per projected float, ordered by
  // coordinate, then by slice.
  std::vector<float> owed;

  // The current step.
  std::vector<std::size_t> samples;  // slices, ascending
  std::vector<SentAs> sent_as;       // per slice of a compressed layer
  float vote = 0;                    // 1: this rank wants a new basis
  // Energies of this rank's own samples, fading: the part outside the basis, and all of it.
  float lost = 0;
  float energy = 0;

  // Statistics, at the owner. Until the samples have decided on a candidate, every other step of
  // samples tests the basis that the others give.
  struct Evidence {
    SliceStatistics fit;
    SliceStatistics test;
  };
  std::vector<Evidence> evidence;  // per candidate; one after the decision
  // Sums over samples of <sum, mean> and <mean, mean>: how well the mean predicts.
  double agreement = 0;
  double strength = 0;
  std::vector<float> pending;  // samples that are not in the evidence yet

  [[nodiscard]] const Slicing& slicing() const { return candidates[chosen]; }
  [[nodiscard]] bool compressed() const { return basis.size() > 0; }

  // Takes a sample at the owner: the sum of one of the candidate's slices over the ranks, and the
  // mean before it.
  void take_sample(std::size_t candidate, std::span<const float> sum, std::span<const float> mean,
                   float weight = 1);
  // Adds the samples taken to the statistics.
  void learn(SliceStatistics& statistics) {
    statistics.add(pending);
    pending.clear();
  }
  void set_basis(std::span<const float> columns, std::size_t size);
  // Shows layer `number` of the bucket.
  void state(Archive& archive, std::size_t number);
};

// Returns the tensors of a bucket that a method compresses, cut in all orders to try.
[[nodiscard]] std::vector<GradiveqLayer> cut_layers(const GradiveqSettings& settings,
                                                    const MethodSetup& setup);

// A new basis for a layer, the same bits on all ranks.
struct NewBasis {
  std::size_t layer = 0;
  std::size_t candidate = 0;
  std::size_t size = 0;  // 0: the layer is sent uncompressed
  float mean_weight = 0;
  std::vector<float> columns;  // U, row-major
};

// Computes a new basis for each of the layers `due` at its owner and sends it to all ranks. Changes
// no layer, so that all are as before if the exchange fails. Throws Error{bad_frame} that names the
// owner of an invalid basis.
[[nodiscard]] std::vector<NewBasis> exchange_bases(const GradiveqSettings& settings,
                                                   std::span<const GradiveqLayer> layers,
                                                   const std::vector<std::size_t>& due,
                                                   Exchange& exchange);
// Gives the layers their new bases.
void apply_bases(const GradiveqSettings& settings, std::span<GradiveqLayer> layers,
                 std::span<const NewBasis> bases, std::uint64_t step);

// Returns <a, b>, added up in order.
[[nodiscard]] double dot(std::span<const float> a, std::span<const float> b);

// Calls visit(index in the layer's projections, index in the tile) for the projections of the
// slices at `places`. A tile is ordered by slice, then by coordinate; GradiveqLayer::owed the other
// way.
template <typename Visit>
void for_projections(const GradiveqLayer& layer, UnitRange places, Visit visit) {
  const std::size_t k = layer.basis.slice();
  const std::size_t size = layer.basis.size();
  const std::size_t slices = layer.slicing().slices();
  const UnitRange range{places.begin / k, places.end / k};
  for (std::size_t j = 0; j < size; ++j) {
    for (std::size_t i = 0; i < range.size(); ++i)
      visit(j * slices + range.begin + i, i * size + j);
  }
}

}  // namespace thinreduce
