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
#include <span>
#include <vector>

#include "thinreduce/collective/sum_payload.h"
#include "thinreduce/methods/gradiveq/layer.h"
#include "thinreduce/methods/gradiveq/projections.h"

namespace thinreduce {

class GradiveqRing final : public SumPayload {
 public:
  // `quantized`, unless null, sends the projections; it must outlive the ring.
  explicit GradiveqRing(QuantizedProjections* quantized) : quantized_(quantized) {}

  // The views must live until the next step: settle() uses them. One float per element of the
  // bucket each; `kept` is empty without feedback.
  struct Step {
    std::span<GradiveqLayer> layers;
    std::span<float> values;  // the gradient; decode() replaces it by the mean
    std::span<const float> mean;
    std::span<float> kept;
    const Exchange* exchange = nullptr;
    bool votes = true;
  };
  void start(const Step& step);
  // Sums the payload and the projections when these are quantized.
  void reduce_quantized(std::uint64_t step, Exchange& exchange);

  // Return sums over the ranks: of the slice at `place` that was sent whole, and of the votes.
  [[nodiscard]] std::span<const float> whole_sum(std::size_t layer, std::size_t place) const;
  [[nodiscard]] std::span<const float> vote_sums() const;

  // Make `kept` of a layer the residual, of which nothing was sent. settle() follows a step that
  // was delivered; the layer is fresh then. take_back() follows one that failed: the residual then
  // includes all of this rank's gradient, whatever was already decoded, and the caller must empty
  // `kept` of the layer.
  void settle(std::size_t layer);
  void take_back(std::size_t layer);

  [[nodiscard]] std::size_t units() const override { return unit_begin_.size() - 1; }
  [[nodiscard]] std::size_t unit_bytes() const override;
  [[nodiscard]] std::span<std::byte> wire(UnitRange range, int summed) override;
  void encode(UnitRange range) override;
  void add(UnitRange range, int summed, std::span<const std::byte> incoming, int peer) override;
  void add_part(UnitRange range, int summed, std::span<const std::byte> part, int peer) override {
    add(range, summed, part, peer);
  }
  void decode(UnitRange range, int peer) override;
  [[nodiscard]] std::size_t bytes() const { return parts_.back().wire * sizeof(float); }

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
  // Returns the first part of a layer from `place` on.
  [[nodiscard]] std::size_t find_part(std::size_t layer, std::size_t place) const;
  [[nodiscard]] std::span<float> wire_floats(UnitRange parts);
  [[nodiscard]] UnitRange parts_of(UnitRange units) const {
    return {unit_begin_[units.begin], unit_begin_[units.end]};
  }
  // Returns scratch for the projections of a part.
  [[nodiscard]] std::span<float> projections_of(const Part& part);

  void encode_projections(const Part& part, std::span<float> wire);
  void decode_projections(const Part& part, std::span<const float> wire);
  void encode_whole(const Part& part, std::span<float> wire);
  void decode_whole(const Part& part, std::span<const float> wire);
  // Turns `kept` of a part into its residual.
  void to_residual(const Part& part, std::span<float> kept);
  // Adds this rank's gradient of a part to its residual, from the bucket or, if the mean has
  // replaced it there, from what was sent.
  void add_gradient(const Part& part, std::span<float> kept);
  // Turns `kept` of a layer into its residual and calls finish(part, kept) for every part.
  template <typename Finish>
  void settle_parts(std::size_t layer, Finish finish);
  void require_finite(const Part& part, std::span<const float> sum) const;

  QuantizedProjections* quantized_;
  Step step_;
  float share_ = 1;                         // 1 / N
  std::vector<Part> parts_{Part{}};         // and an end
  std::vector<std::size_t> unit_begin_{0};  // per unit, in parts_; and the end
  std::vector<float> wire_;
  std::vector<float> own_;   // what this rank added to wire_; empty without feedback
  std::size_t longest_ = 0;  // floats of the longest part
  // Copies of elements, for layers that are not contiguous, and scratch of the projections.
  std::vector<float> values_copy_, mean_copy_, kept_copy_, slices_, projections_, padded_;
};

}  // namespace thinreduce
