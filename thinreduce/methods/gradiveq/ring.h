// What GradiVeQ sends round the ring in a compressed step: projections of slices, some slices
// whole, elements that fill no slice, and one vote a layer.
//
// A unit is a run of slices of one layer, or a run of a layer's uncompressed elements, so that
// units are about equally long; the votes are the last unit. Segments are encoded right before they
// leave and decoded as soon as they are complete.
//
// When another method quantizes the projections, these do not go round the ring but wait in a
// GradiveqProjections; the ring has the rest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/collective/ring.h"
#include "thinreduce/methods/gradiveq/layer.h"
#include "thinreduce/methods/gradiveq/projections.h"

namespace thinreduce {

class GradiveqRing final : public RingPayload {
 public:
  // `apart`, if there is one, takes the projections; it must stay in place.
  explicit GradiveqRing(GradiveqProjections* apart) : apart_(apart) {}

  // One float an element of the bucket each; `kept` is empty without feedback.
  struct Fields {
    std::span<float> values;
    std::span<const float> mean;
    std::span<float> kept;
  };
  // What is different in each step. Whole slices are in ascending order, a list a layer; so are the
  // votes, unless there are none.
  struct Step {
    Fields fields;
    int world = 1;
    std::span<const std::vector<WholeSlice>> whole;
    std::span<const float> votes;
  };

  // Must be called when a layer's cut or basis has changed. `layers` must stay in place.
  void arrange(std::span<const GradiveqLayer> layers);
  void start(const Step& step);

  // After the ring. The sum over all ranks of a slice that travelled whole, and of the votes.
  [[nodiscard]] std::span<const float> whole_sum(std::size_t layer, std::size_t slice) const;
  [[nodiscard]] std::span<const float> vote_sums() const;
  [[nodiscard]] std::size_t bytes() const { return ends_.back() * sizeof(float); }

  // With projections apart: the rest, to be summed as it is between encode() and deliver(), and
  // behind it what the projections want to have summed.
  [[nodiscard]] std::span<float> rest();
  [[nodiscard]] std::span<float> moments();
  // decode() of everything; throws before anything is delivered or not at all.
  void deliver();

  // Makes `kept` the residual, with nothing in it that was sent; the layer counts as fresh then.
  void settle(std::size_t layer, const Fields& fields);
  // After a failure: settles all layers and adds to `kept` what was not delivered.
  void put_back();

  [[nodiscard]] std::size_t units() const override { return units_.size(); }
  [[nodiscard]] std::size_t unit_bytes() const override;
  [[nodiscard]] std::span<std::byte> wire(UnitRange range, int summed) override;
  void encode(UnitRange range) override;
  void add(UnitRange range, int summed, std::span<const std::byte> incoming) override;
  void decode(UnitRange range) override;

 private:
  enum class Content : std::uint8_t { slices, elements, votes };
  struct Unit {
    Content content = Content::elements;
    std::size_t layer = 0;
    std::size_t begin = 0;  // slice, or place in the layer's string
    std::size_t count = 0;
    std::size_t floats = 0;  // on the wire when no slice travels whole
  };

  [[nodiscard]] std::size_t unit_of(std::size_t layer, std::size_t slice) const;
  [[nodiscard]] std::span<float> wire_floats(std::size_t unit);
  // The first slice of a layer that travels whole, from `slice` on.
  [[nodiscard]] std::vector<WholeSlice>::const_iterator first_whole(std::size_t layer,
                                                                    std::size_t slice) const;
  // Floats on the wire for each projected slice.
  [[nodiscard]] std::size_t wire_rank(const GradiveqLayer& layer) const {
    return apart_ == nullptr ? layer.basis.rank() : 0;
  }
  using Run = GradiveqProjections::Run;
  // Calls visit(run, null, floats on the wire) for runs of projected slices of a unit and
  // visit(run of one, which, floats on the wire) for each that travels whole.
  template <typename Visit>
  void for_parts(const Unit& unit, std::span<float> wire, Visit visit) const;

  void encode_projected(const GradiveqLayer& layer, const Run& run, std::span<float> projections);
  void decode_projected(const GradiveqLayer& layer, const Run& run,
                        std::span<const float> projections);
  void encode_whole(const Run& run, WholeSlice::Kind kind, std::span<float> wire);
  void decode_whole(const GradiveqLayer& layer, std::size_t place, std::span<const float> wire,
                    bool clears);
  void encode_unit(const Unit& unit, std::span<float> wire);
  void decode_unit(const Unit& unit, std::span<float> wire);
  enum class Owed : std::uint8_t { stays, goes };
  // slices += what is owed within the basis.
  void add_owed(const Run& run, std::span<float> slices, Owed then);
  void encode_elements(const GradiveqLayer& layer, std::size_t place, std::span<float> wire);
  // floats -= their part within the basis; whole slices.
  void remove_projection(const Basis& basis, std::span<float> slices);
  void require_finite_sum(const Unit& unit, std::span<const float> sum) const;

  GradiveqProjections* apart_;
  std::span<const GradiveqLayer> layers_;
  std::vector<std::size_t> first_unit_;       // of each layer's slices
  std::vector<std::size_t> slices_per_unit_;  // of each layer
  std::vector<Unit> units_;
  Step step_;
  float share_ = 1;                      // 1 / world
  std::vector<std::size_t> ends_{0};     // in floats, one more than units
  std::vector<std::uint8_t> delivered_;  // units
  std::vector<float> wire_;
  // Copies of slices, for layers whose string is not the memory, and what the kernels pad.
  std::vector<float> tile_, values_copy_, mean_copy_, kept_copy_, projected_, apart_tile_;
};

}  // namespace thinreduce
