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

#include "thinreduce/collective/sum_payload.h"
#include "thinreduce/methods/gradiveq/layer.h"
#include "thinreduce/methods/gradiveq/projections.h"

namespace thinreduce {

class GradiveqRing final : public SumPayload {
 public:
  // `settings` and `state` must outlive the ring.
  GradiveqRing(const GradiveqSettings& settings, const MethodSetup& setup, GradiveqState& state);

  // Begins a step: `values` is this rank's gradient, which reduce() replaces by the mean. It must
  // live until the next step.
  void start(std::span<float> values, const Exchange& exchange);
  // Projects the slices, sums the payload over the ranks, and rebuilds the mean: segment by segment
  // inside the collective, or all at once around a quantizer. `kept` takes in the gradient.
  void reduce(std::uint64_t step, Exchange& exchange);
  // After a failed step: makes `kept` this rank's residual, with all of its gradient, whatever was
  // sent or decoded already.
  void take_back();

  // Return sums over the ranks: of the slice at `place` that was sent whole, and of the votes.
  [[nodiscard]] std::span<const float> whole_sum(std::size_t layer, std::size_t place) const;
  [[nodiscard]] std::span<const float> vote_sums() const;

  [[nodiscard]] std::size_t units() const override { return unit_begin_.size() - 1; }
  [[nodiscard]] std::size_t unit_bytes() const override;
  [[nodiscard]] std::span<std::byte> wire(UnitRange range, int summed) override;
  void encode(UnitRange range) override;
  void add(UnitRange range, int summed, std::span<const std::byte> incoming, int peer) override;
  void add_part(UnitRange range, int summed, std::span<const std::byte> part, int peer) override {
    add(range, summed, part, peer);
  }
  void decode(UnitRange range, int peer) override;

 private:
  struct Part {
    SentAs sent_as = SentAs::votes;
    std::size_t layer = 0;
    UnitRange places;      // in the layer's sequence
    std::size_t wire = 0;  // its first float in wire_
    bool delivered = false;
  };

  void add_layer(std::size_t layer);
  void add_part(SentAs sent_as, std::size_t layer, UnitRange places, std::size_t floats);
  [[nodiscard]] std::span<float> wire_floats(UnitRange parts);
  [[nodiscard]] UnitRange parts_of(UnitRange units) const {
    return {unit_begin_[units.begin], unit_begin_[units.end]};
  }
  // Returns scratch for the projections of a part.
  [[nodiscard]] std::span<float> projections_of(const Part& part, GradiveqScratch& scratch) const;
  void require_finite(const Part& part, std::span<const float> sum) const;

  // Calls work(part, scratch) for all parts of a range of units, on all threads.
  template <typename Work>
  void for_parts(UnitRange units, const Work& work);

  void project(const Part& part, std::span<float> wire, GradiveqScratch& scratch);
  void rebuild(const Part& part, std::span<const float> wire, GradiveqScratch& scratch);
  void encode_whole(const Part& part, std::span<float> wire, GradiveqScratch& scratch);
  void decode_whole(const Part& part, std::span<const float> wire, GradiveqScratch& scratch);
  // Adds this rank's gradient of a part to its residual: from the bucket or, if the mean has
  // replaced it there, from what was sent.
  void add_gradient(const Part& part, std::span<float> residual);

  const GradiveqSettings& settings_;
  GradiveqState& state_;
  std::optional<QuantizedProjections> quantized_;
  std::span<float> values_;
  const Exchange* exchange_ = nullptr;
  float share_ = 1;                         // 1 / N
  std::vector<Part> parts_{Part{}};         // by layer and place, and an end
  std::vector<std::size_t> unit_begin_{0};  // per unit, in parts_; and the end
  std::vector<float> wire_;
  std::vector<float> own_;                // what this rank added to wire_; empty without feedback
  std::vector<GradiveqScratch> scratch_;  // by thread
};

}  // namespace thinreduce
