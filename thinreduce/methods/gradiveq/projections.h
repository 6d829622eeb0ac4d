// GradiVeQ's projections when another method quantizes them: dqsg's integer codes are summed,
// qsgd's payloads are gathered.
//
// The projections of a layer are ordered by coordinate, then by slice: coordinates differ in size
// by orders of magnitude, so the values of a block, which share a scale, should be of one.
//
// With feedback, the decoded sum is multiplied by one factor per layer, between 0 and 1, that
// brings it nearest to the ranks' projections. The errors that they keep are then never
// larger than the values, however coarse the quantizer, and stay bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/methods/gradiveq/layer.h"
#include "thinreduce/methods/quantize/block_codec.h"
#include "thinreduce/methods/quantize/dithered_sum.h"

namespace thinreduce {

class QuantizedProjections {
 public:
  // `state` must outlive this object.
  QuantizedProjections(const QuantizedGatherOptions& options, GradiveqState& state,
                       const MethodSetup& setup);

  // Begins a step.
  void start();
  // Return this rank's projections of a layer with the errors owed, to be set before exchange(),
  // and their sums over the ranks after finish().
  [[nodiscard]] float* own(const GradiveqLayer& layer) { return &own_[begin_[layer.number]]; }
  [[nodiscard]] const float* sum(const GradiveqLayer& layer) const {
    return &sum_[begin_[layer.number]];
  }

  // Returns the number of floats that the ranks must sum between exchange() and finish().
  [[nodiscard]] std::size_t moments() const { return feedback() ? 2 * layers_.size() : 0; }
  // Quantizes, exchanges and sums the projections, and sets the moments.
  void exchange(std::uint64_t step, Exchange& exchange, std::span<float> moments);
  // Throws Error{bad_frame} unless the sums are finite.
  void finish(std::span<const float> moment_sums, const Exchange& exchange);
  // Gives the layers the errors of this rank's codes, after a step that succeeded.
  void keep_errors();

 private:
  [[nodiscard]] bool feedback() const { return !layers_.empty() && layers_[0].quantized; }
  // Set sum_ and sent_ from own_.
  void sum_codes(Exchange& exchange);
  void gather_codes(Exchange& exchange);
  // Drops the codes of whole slices. A sample's errors stay; those of a flushed slice are sent.
  void clear_whole_slices();

  QuantizedGatherOptions options_;
  std::vector<GradiveqLayer>& layers_;
  std::uint64_t seed_;
  std::uint32_t bucket_;
  std::vector<std::size_t> begin_;  // per layer, in the vectors below, and the end
  // This rank's projections with the errors owed, the sum over the ranks, and this rank's part of
  // that sum.
  std::vector<float> own_, sum_, sent_;
  std::vector<RandomKey> keys_;  // by rank
  float largest_scale_ = 0;      // over all ranks
  // Summed codes.
  std::vector<float> scales_, own_scales_;
  DitheredSumBuffers buffers_;
  // Gathered codes.
  std::optional<BlockCodec> codec_;
  std::vector<std::byte> payload_;
};

}  // namespace thinreduce
