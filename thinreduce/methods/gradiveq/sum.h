// The payload that GradiVeQ sums over the ranks in a compressed step: projections of slices, some
// slices whole, elements outside slices, and one vote per layer.
//
// A unit is a run of slices of one layer, or a run of its other elements, so that units are about
// equally long on the wire; the votes are the last unit. Units are made of parts, runs of elements
// that are sent alike. Segments are encoded right before they are sent and decoded as soon as they
// are complete.
//
// With a quantizer the projections are not part of the payload; QuantizedProjections sends them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "thinreduce/collective/sum_codec.h"
#include "thinreduce/methods/gradiveq/layer.h"
#include "thinreduce/methods/gradiveq/projections.h"

namespace thinreduce {

class GradiveqSum final : public SumCodec {
 public:
  // `state` must outlive this object.
  GradiveqSum(GradiveqState& state, const MethodSetup& setup);

  // Begins a step: `values` is this rank's gradient, which reduce() replaces by the mean. It must
  // live until the step ends with finish() or take_back().
  void start(std::span<float> values, const Exchange& exchange);
  // Projects the slices, sums the payload over the ranks, and rebuilds the mean: segment by segment
  // inside the collective, or all at once around a quantizer. `kept` takes in the gradient.
  void reduce(std::uint64_t step, Exchange& exchange);
  // Ends a step that succeeded: the layers get the errors of a quantizer.
  void finish();
  // Ends a step that failed, possibly before or during start(): `kept` becomes this rank's residual
  // with all of its gradient, and the layers owe nothing. Allocates nothing.
  void take_back(std::span<const float> values);

  // Reads the sum over the ranks of a slice that was sent uncompressed and without residual.
  // Returns false for any other slice.
  [[nodiscard]] bool sample_sum(const GradiveqLayer& layer, std::size_t slice,
                                std::span<float> sum) const;
  // Returns the votes for new bases, per layer.
  [[nodiscard]] std::span<const float> vote_sums() const;

  [[nodiscard]] std::size_t units() const override { return unit_begin_.size() - 1; }
  [[nodiscard]] std::size_t unit_bytes() const override;
  [[nodiscard]] std::span<std::byte> wire(Range range, int summed) override;
  void encode(Range range) override;
  void add(Range range, int summed, std::span<const std::byte> incoming, int peer) override;
  void add_part(Range range, int summed, std::span<const std::byte> part, int peer) override {
    add(range, summed, part, peer);
  }
  void decode(Range range, int peer) override;

 private:
  // A run of elements that are sent alike.
  struct Part {
    SentAs sent_as = SentAs::votes;
    std::size_t layer = 0;
    Range places;            // in the layer's sequence
    std::size_t wire = 0;    // its first float in wire_
    bool delivered = false;  // the mean has replaced the gradient
  };

  void add_layer(const GradiveqLayer& layer);
  void add_part(SentAs sent_as, std::size_t layer, Range places, std::size_t floats);
  [[nodiscard]] std::span<float> wire_floats(Range parts);
  [[nodiscard]] Range parts_of(Range units) const {
    return {unit_begin_[units.begin], unit_begin_[units.end]};
  }
  [[nodiscard]] const GradiveqLayer& layer_of(const Part& part) const {
    return state_.layers[part.layer];
  }
  // Calls work(part, its floats, scratch) for all parts of a range of units, on all threads.
  template <typename Work>
  void for_parts(Range units, const Work& work);
  void require_finite(const Part& part, std::span<const float> sum) const;

  // Return a part of the bucket, the mean or `kept`: the memory itself, or a copy of it.
  std::span<float> values_of(const Part& part, GradiveqScratch& scratch) const;
  std::span<float> mean_of(const Part& part, GradiveqScratch& scratch) const;
  std::span<float> kept_of(const Part& part, GradiveqScratch& scratch) const;
  [[nodiscard]] std::span<const float> next(const Part& part, std::span<const float> bucket) const;
  void project(const Part& part, std::span<float> wire, GradiveqScratch& scratch);
  void rebuild(const Part& part, std::span<const float> wire, GradiveqScratch& scratch);
  void encode_whole(const Part& part, std::span<float> wire, GradiveqScratch& scratch);
  void decode_whole(const Part& part, std::span<const float> wire, GradiveqScratch& scratch);
  void take_back(const Part& part, GradiveqScratch& scratch);
  // Makes `kept` the residual and the gradient of a part whose projections were delivered.
  void restore_projected(const Part& part, std::span<float> kept, GradiveqScratch& scratch);

  GradiveqState& state_;
  const bool feedback_;
  std::optional<QuantizedProjections> quantized_;

  // The current step.
  std::span<float> values_;  // empty between steps
  const Exchange* exchange_ = nullptr;
  float share_ = 1;                         // 1 / N
  std::vector<Part> parts_{Part{}};         // by layer and place, and an end
  std::vector<std::size_t> unit_begin_{0};  // per unit, in parts_; and the end

  std::vector<float> wire_;
  std::vector<float> own_;  // what this rank added to wire_; empty without feedback
};

}  // namespace thinreduce
