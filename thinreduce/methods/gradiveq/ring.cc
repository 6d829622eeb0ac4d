#include "thinreduce/methods/gradiveq/ring.h"

#include <fmt/format.h>

#include <algorithm>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/gradiveq/matrix.h"

namespace thinreduce {
namespace {

// Floats of a unit on the wire, about: few compared with a segment, many compared with a call.
constexpr std::size_t kUnitFloats = 1024;
// Max slices per unit: the kernels' working set stays in the cache.
constexpr std::size_t kUnitSlices = 32;

std::size_t slices_per_unit(std::size_t basis_size) {
  const std::size_t slices = std::clamp<std::size_t>(kUnitFloats / basis_size, 1, kUnitSlices);
  // The kernels take up to eight slices at a time.
  return slices >= 8 ? slices / 8 * 8 : slices;
}

// Returns a run of a layer's sequence: the memory itself, or a copy.
template <typename Float>
std::span<Float> fetch(const Slicing& slicing, std::span<Float> bucket, UnitRange places,
                       std::vector<float>& copy) {
  if (slicing.contiguous()) return slicing.span(bucket, places.begin, places.size());
  const auto out = std::span(copy).first(places.size());
  slicing.gather(bucket, places.begin, out);
  return out;
}

// Writes a run that fetch() returned back to the bucket.
void give_back(const Slicing& slicing, std::span<const float> run, UnitRange places,
               std::span<float> bucket) {
  if (!slicing.contiguous()) slicing.scatter(run, places.begin, bucket);
}

// Returns the memory after `places`, as much again, in up to three fields of the bucket.
kernels::Ahead ahead_of(const Slicing& slicing, UnitRange places,
                        std::initializer_list<std::span<const float>> fields) {
  kernels::Ahead ahead;
  if (!slicing.contiguous()) return ahead;
  ahead.floats = std::min(places.size(), slicing.elements() - places.end);
  for (const auto field : fields) {
    if (field.empty()) continue;
    ahead.runs[ahead.count++] = slicing.span(field, places.end, ahead.floats).data();
  }
  return ahead;
}

}  // namespace

void GradiveqRing::start(const Step& step) {
  step_ = step;
  share_ = 1.0f / static_cast<float>(step.exchange->size());
  parts_.assign(1, Part{});
  unit_begin_.clear();
  longest_ = kUnitFloats;
  std::size_t projections = 0;
  for (std::size_t l = 0; l < step.layers.size(); ++l) {
    add_layer(l);
    const std::size_t size = step.layers[l].basis.size();
    if (size > 0) projections = std::max(projections, slices_per_unit(size) * size);
  }
  const std::size_t layers = step.layers.size();
  unit_begin_.push_back(parts_.size() - 1);
  if (layers > 0) {
    add_part(SentAs::votes, layers, {0, layers}, step.votes ? layers : 0);
    unit_begin_.push_back(parts_.size() - 1);
  }
  for (auto* scratch : {&values_copy_, &mean_copy_, &kept_copy_, &slices_}) {
    if (scratch->size() < longest_) scratch->resize(longest_);
  }
  if (projections_.size() < projections) projections_.resize(projections);
  if (quantized_ != nullptr) quantized_->start(step.layers);
  const std::size_t floats =
      parts_.back().wire + (quantized_ == nullptr ? 0 : quantized_->moments());
  if (wire_.size() < floats) wire_.resize(floats);
  if (!step.kept.empty() && own_.size() < floats) own_.resize(floats);
}

// The last part is the end: it becomes the new part, and another end follows.
void GradiveqRing::add_part(SentAs sent_as, std::size_t layer, UnitRange places,
                            std::size_t floats) {
  const std::size_t wire = parts_.back().wire;
  parts_.back() = {sent_as, layer, places, wire};
  parts_.push_back({.layer = layer + 1, .places = {}, .wire = wire + floats});
}

void GradiveqRing::add_layer(std::size_t l) {
  const GradiveqLayer& layer = step_.layers[l];
  const Slicing& slicing = layer.slicing();
  const std::size_t k = slicing.slice();
  const std::size_t slices = layer.compressed() ? slicing.slices() : 0;
  const std::size_t per_unit = slices > 0 ? slices_per_unit(layer.basis.size()) : 1;
  const std::size_t floats = quantized_ == nullptr ? layer.basis.size() : 0;
  std::size_t unit_end = 0;  // the slice at which the next unit begins
  for (std::size_t begin = 0; begin < slices;) {
    const std::size_t unit = unit_begin_.empty() ? 0 : unit_begin_.back();
    // Whole slices are long: they fill a unit sooner.
    if (begin == unit_end || parts_.back().wire - parts_[unit].wire >= kUnitFloats) {
      unit_begin_.push_back(parts_.size() - 1);
      unit_end = std::min(slices, begin + per_unit);
    }
    const SentAs sent_as = layer.sent_as[begin];
    std::size_t end = begin + 1;
    if (sent_as == SentAs::projection) {
      while (end < unit_end && layer.sent_as[end] == SentAs::projection) ++end;
    }
    add_part(sent_as, l, {begin * k, end * k},
             sent_as == SentAs::projection ? (end - begin) * floats : k);
    begin = end;
  }
  longest_ = std::max(longest_, per_unit * k);
  for (std::size_t place = slices * k; place < slicing.elements(); place += kUnitFloats) {
    unit_begin_.push_back(parts_.size() - 1);
    const std::size_t end = std::min(place + kUnitFloats, slicing.elements());
    add_part(SentAs::unsliced, l, {place, end}, end - place);
  }
}

std::size_t GradiveqRing::find_part(std::size_t layer, std::size_t place) const {
  const auto before = [](const Part& part, std::pair<std::size_t, std::size_t> wanted) {
    return std::pair(part.layer, part.places.begin) < wanted;
  };
  const auto found =
      std::lower_bound(parts_.begin(), parts_.end(), std::pair(layer, place), before);
  return static_cast<std::size_t>(found - parts_.begin());
}

std::span<float> GradiveqRing::projections_of(const Part& part) {
  const Basis& basis = step_.layers[part.layer].basis;
  return std::span(projections_).first(part.places.size() / basis.slice() * basis.size());
}

std::span<float> GradiveqRing::wire_floats(UnitRange parts) {
  const std::size_t begin = parts_[parts.begin].wire;
  return std::span(wire_).subspan(begin, parts_[parts.end].wire - begin);
}

std::size_t GradiveqRing::unit_bytes() const {
  return std::max<std::size_t>(1, bytes() / units());
}

std::span<std::byte> GradiveqRing::wire(UnitRange range, int /*summed*/) {
  return std::as_writable_bytes(wire_floats(parts_of(range)));
}

void GradiveqRing::add(UnitRange range, int /*summed*/, std::span<const std::byte> incoming,
                       int /*peer*/) {
  const std::span<float> own = wire_floats(parts_of(range));
  kernels::add(own, {reinterpret_cast<const float*>(incoming.data()), own.size()});
}

void GradiveqRing::encode(UnitRange range) {
  const UnitRange parts = parts_of(range);
  for (std::size_t p = parts.begin; p < parts.end; ++p) {
    const Part& part = parts_[p];
    const auto wire = wire_floats({p, p + 1});
    if (part.sent_as == SentAs::votes) {
      for (std::size_t l = 0; l < wire.size(); ++l) wire[l] = step_.layers[l].vote;
    } else if (part.sent_as == SentAs::projection) {
      encode_projections(part, wire);
    } else {
      encode_whole(part, wire);
    }
    if (!own_.empty()) std::copy(wire.begin(), wire.end(), &own_[part.wire]);
  }
}

void GradiveqRing::decode(UnitRange range, int /*peer*/) {
  const UnitRange parts = parts_of(range);
  for (std::size_t p = parts.begin; p < parts.end; ++p) {
    Part& part = parts_[p];
    const auto wire = wire_floats({p, p + 1});
    require_finite(part, wire);
    if (part.sent_as == SentAs::projection) {
      decode_projections(part, wire);
    } else if (part.sent_as != SentAs::votes) {
      decode_whole(part, wire);
    }
    part.delivered = true;
  }
}

void GradiveqRing::require_finite(const Part& part, std::span<const float> sum) const {
  if (kernels::first_nonfinite(sum) == sum.size()) return;
  const bool votes = part.sent_as == SentAs::votes;
  const std::string name = votes ? "" : step_.layers[part.layer].name;
  require_finite_sum(*step_.exchange, sum,
                     votes ? "vote" : fmt::format("value sent for tensor '{}'", name));
}

// The quantizer needs all projections first, because they share scales. The sums are checked before
// anything is delivered.
void GradiveqRing::reduce_quantized(std::uint64_t step, Exchange& exchange) {
  exchange.timed(Stage::encode, [&] { encode({0, units()}); });
  const std::size_t floats = parts_.back().wire;
  const auto sums = std::span(wire_).first(floats + quantized_->moments());
  const auto moments = sums.subspan(floats);
  quantized_->exchange(step, exchange, moments);
  sum_floats(exchange, sums, 1.0f);
  exchange.timed(Stage::decode, [&] {
    for (std::size_t p = 0; p + 1 < parts_.size(); ++p) {
      require_finite(parts_[p], wire_floats({p, p + 1}));
    }
    quantized_->finish(moments, exchange);
    decode({0, units()}, exchange.rank());
  });
}

void GradiveqRing::encode_projections(const Part& part, std::span<float> wire) {
  const GradiveqLayer& layer = step_.layers[part.layer];
  const Slicing& slicing = layer.slicing();
  const std::span<const float> values = step_.values;
  const std::span<const float> kept = step_.kept;
  const auto slices = std::span(slices_).first(part.places.size());
  kernels::center(fetch(slicing, values, part.places, values_copy_),
                  fetch(slicing, step_.mean, part.places, mean_copy_), layer.mean_weight * share_,
                  slices);
  if (layer.fresh && !kept.empty()) {
    kernels::add(slices, fetch(slicing, kept, part.places, kept_copy_));
  }
  const auto projections = quantized_ == nullptr ? wire : projections_of(part);
  layer.basis.project(slices, projections, padded_,
                      ahead_of(slicing, part.places, {values, step_.mean}));
  if (quantized_ != nullptr) quantized_->put(part.layer, part.places, projections);
}

void GradiveqRing::decode_projections(const Part& part, std::span<const float> wire) {
  const GradiveqLayer& layer = step_.layers[part.layer];
  const Slicing& slicing = layer.slicing();
  if (quantized_ != nullptr) {
    quantized_->get(part.layer, part.places, projections_of(part));
    wire = projections_of(part);
  }
  const auto slices = std::span(slices_).first(part.places.size());
  layer.basis.rebuild(wire, slices, padded_,
                      ahead_of(slicing, part.places, {step_.values, step_.mean, step_.kept}));
  const auto values = fetch(slicing, step_.values, part.places, values_copy_);
  const auto kept =
      step_.kept.empty() ? step_.kept : fetch(slicing, step_.kept, part.places, kept_copy_);
  kernels::deliver({.decoded = slices,
                    .mean = fetch(slicing, step_.mean, part.places, mean_copy_),
                    .own_mean = layer.mean_weight * share_,
                    .whole_mean = layer.mean_weight,
                    .scale = share_},
                   kept, values);
  give_back(slicing, values, part.places, step_.values);
  if (!kept.empty()) give_back(slicing, kept, part.places, step_.kept);
}

void GradiveqRing::encode_whole(const Part& part, std::span<float> wire) {
  const Slicing& slicing = step_.layers[part.layer].slicing();
  slicing.gather(step_.values, part.places.begin, wire);
  if (part.sent_as == SentAs::sample || step_.kept.empty()) return;
  const auto kept = std::span(kept_copy_).first(wire.size());
  slicing.gather(step_.kept, part.places.begin, kept);
  to_residual(part, kept);
  kernels::add(wire, kept);
}

void GradiveqRing::decode_whole(const Part& part, std::span<const float> wire) {
  GradiveqLayer& layer = step_.layers[part.layer];
  const auto mean = std::span(values_copy_).first(wire.size());
  std::copy(wire.begin(), wire.end(), mean.begin());
  kernels::scale(mean, share_);
  layer.slicing().scatter(mean, part.places.begin, step_.values);
  if (part.sent_as == SentAs::sample || step_.kept.empty()) return;
  const auto zeros = std::span(kept_copy_).first(wire.size());
  std::fill(zeros.begin(), zeros.end(), 0.0f);
  layer.slicing().scatter(zeros, part.places.begin, step_.kept);
  if (part.sent_as == SentAs::flush && layer.quantized) {
    for_projections(layer, part.places, [&](std::size_t i, std::size_t) { layer.owed[i] = 0; });
  }
}

void GradiveqRing::to_residual(const Part& part, std::span<float> kept) {
  if (part.sent_as == SentAs::unsliced) return;
  const GradiveqLayer& layer = step_.layers[part.layer];
  const auto projections = projections_of(part);
  const auto rebuilt = std::span(slices_).first(kept.size());
  // The part of a fresh layer within the basis is sent for the first time in this step.
  if (!layer.fresh || part.delivered) {
    layer.basis.project(kept, projections, padded_);
    layer.basis.rebuild(projections, rebuilt, padded_);
    for (std::size_t i = 0; i < kept.size(); ++i) kept[i] -= rebuilt[i];
  }
  if (!layer.quantized) return;
  for_projections(layer, part.places,
                  [&](std::size_t i, std::size_t at) { projections[at] = layer.owed[i]; });
  layer.basis.rebuild(projections, rebuilt, padded_);
  kernels::add(kept, rebuilt);
}

void GradiveqRing::add_gradient(const Part& part, std::span<float> kept) {
  const GradiveqLayer& layer = step_.layers[part.layer];
  const Slicing& slicing = layer.slicing();
  const std::span<const float> values = step_.values;
  if (!part.delivered) {
    kernels::add(kept, fetch(slicing, values, part.places, values_copy_));
    return;
  }
  std::span<const float> sent = std::span(own_).subspan(part.wire);
  if (part.sent_as != SentAs::projection) {
    kernels::add(kept, sent.first(kept.size()));
    return;
  }
  if (quantized_ != nullptr) {
    quantized_->given(part.layer, part.places, projections_of(part));
    sent = projections_of(part);
  }
  const auto rebuilt = std::span(slices_).first(kept.size());
  layer.basis.rebuild(sent.first(projections_of(part).size()), rebuilt, padded_);
  kernels::add(kept, rebuilt);
  // The mean was subtracted before the projection.
  const auto mean = fetch(slicing, step_.mean, part.places, mean_copy_);
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] += mean[i] * (layer.mean_weight * share_);
}

template <typename Finish>
void GradiveqRing::settle_parts(std::size_t l, Finish finish) {
  GradiveqLayer& layer = step_.layers[l];
  const UnitRange parts{find_part(l, 0), find_part(l + 1, 0)};
  for (std::size_t p = parts.begin; p < parts.end && !step_.kept.empty(); ++p) {
    const Part& part = parts_[p];
    const auto kept = fetch(layer.slicing(), step_.kept, part.places, kept_copy_);
    to_residual(part, kept);
    finish(part, kept);
    give_back(layer.slicing(), kept, part.places, step_.kept);
  }
  std::fill(layer.owed.begin(), layer.owed.end(), 0.0f);
}

void GradiveqRing::settle(std::size_t l) {
  settle_parts(l, [](const Part&, std::span<float>) {});
  step_.layers[l].fresh = true;
}

void GradiveqRing::take_back(std::size_t l) {
  settle_parts(l, [&](const Part& part, std::span<float> kept) { add_gradient(part, kept); });
}

std::span<const float> GradiveqRing::whole_sum(std::size_t layer, std::size_t place) const {
  return std::span(wire_).subspan(parts_[find_part(layer, place)].wire,
                                  step_.layers[layer].slicing().slice());
}

std::span<const float> GradiveqRing::vote_sums() const {
  const std::size_t votes = step_.votes ? step_.layers.size() : 0;
  return std::span(wire_).subspan(parts_.back().wire - votes, votes);
}

}  // namespace thinreduce
