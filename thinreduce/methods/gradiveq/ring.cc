#include "thinreduce/methods/gradiveq/ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/gradiveq/matrix.h"

namespace thinreduce {
namespace {

// Floats of a unit on the wire, about: small against a chunk of the ring, large against a call.
constexpr std::size_t kUnitFloats = 1024;
// Slices of a unit at most: what the kernels work on at a time stays in the cache.
constexpr std::size_t kUnitSlices = 32;

std::size_t slices_per_unit(std::size_t rank) {
  const std::size_t slices = std::clamp<std::size_t>(kUnitFloats / rank, 1, kUnitSlices);
  // The kernels take eight at a time.
  return slices >= 8 ? slices / 8 * 8 : slices;
}

// A run of a layer's string: the memory itself, or a copy of it.
template <typename Float>
std::span<Float> fetch(const Slicing& slicing, std::span<Float> bucket, UnitRange places,
                       std::vector<float>& copy) {
  if (slicing.contiguous()) return slicing.span(bucket, places.begin, places.size());
  const auto out = std::span(copy).first(places.size());
  slicing.gather(bucket, places.begin, out);
  return out;
}

// What was changed in a run that fetch() returned goes to its place.
void give_back(const Slicing& slicing, std::span<const float> run, std::size_t place,
               std::span<float> bucket) {
  if (!slicing.contiguous()) slicing.scatter(run, place, bucket);
}

// As many floats as `places` behind it, of up to three fields.
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

void GradiveqRing::arrange(std::span<const GradiveqLayer> layers) {
  layers_ = layers;
  units_.clear();
  first_unit_.assign(layers.size(), 0);
  slices_per_unit_.assign(layers.size(), 1);
  std::size_t floats = kUnitFloats;
  std::size_t projected = 0;
  std::size_t apart = 0;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const GradiveqLayer& layer = layers[l];
    const Slicing& slicing = layer.slicing();
    first_unit_[l] = units_.size();
    std::size_t place = 0;
    if (layer.compressed()) {
      const std::size_t rank = layer.basis.rank();
      const std::size_t most = slices_per_unit_[l] = slices_per_unit(rank);
      for (std::size_t slice = 0; slice < slicing.slices(); slice += most) {
        const std::size_t count = std::min(most, slicing.slices() - slice);
        units_.push_back({Content::slices, l, slice, count, count * wire_rank(layer)});
      }
      place = slicing.sliced();
      floats = std::max(floats, most * layer.basis.rebuilt_stride());
      projected = std::max(projected, most * layer.basis.projected_stride());
      if (apart_ != nullptr) apart = std::max(apart, most * rank);
    }
    for (; place < slicing.elements(); place += kUnitFloats) {
      const std::size_t count = std::min(kUnitFloats, slicing.elements() - place);
      units_.push_back({Content::elements, l, place, count, count});
    }
  }
  if (!layers.empty()) units_.push_back({Content::votes, 0, 0, layers.size(), layers.size()});
  for (auto* scratch : {&tile_, &values_copy_, &mean_copy_, &kept_copy_}) scratch->resize(floats);
  projected_.resize(projected);
  apart_tile_.resize(apart);
  if (apart_ != nullptr) apart_->arrange(layers);
  ends_.assign(units_.size() + 1, 0);
  delivered_.assign(units_.size(), 0);
}

std::size_t GradiveqRing::unit_of(std::size_t layer, std::size_t slice) const {
  return first_unit_[layer] + slice / slices_per_unit_[layer];
}

void GradiveqRing::start(const Step& step) {
  step_ = step;
  share_ = 1.0f / static_cast<float>(step.world);
  for (std::size_t u = 0; u < units_.size(); ++u) ends_[u + 1] = units_[u].floats;
  for (std::size_t l = 0; l < step.whole.size(); ++l) {
    const std::size_t more = layers_[l].basis.slice() - wire_rank(layers_[l]);
    for (const WholeSlice& whole : step.whole[l]) ends_[unit_of(l, whole.slice) + 1] += more;
  }
  if (step.votes.empty() && !units_.empty()) ends_.back() = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) ends_[u + 1] += ends_[u];
  const std::size_t floats = ends_.back() + (apart_ == nullptr ? 0 : apart_->moments());
  if (wire_.size() < floats) wire_.resize(floats);
  std::fill(delivered_.begin(), delivered_.end(), std::uint8_t{0});
}

std::size_t GradiveqRing::unit_bytes() const {
  return std::max<std::size_t>(1, bytes() / units_.size());
}

std::span<float> GradiveqRing::wire_floats(std::size_t unit) {
  return std::span(wire_).subspan(ends_[unit], ends_[unit + 1] - ends_[unit]);
}

std::span<std::byte> GradiveqRing::wire(UnitRange range, int /*summed*/) {
  return std::as_writable_bytes(
      std::span(wire_).subspan(ends_[range.begin], ends_[range.end] - ends_[range.begin]));
}

void GradiveqRing::add(UnitRange range, int /*summed*/, std::span<const std::byte> incoming) {
  const std::span<float> own =
      std::span(wire_).subspan(ends_[range.begin], ends_[range.end] - ends_[range.begin]);
  kernels::add(own, {reinterpret_cast<const float*>(incoming.data()), own.size()});
}

std::vector<WholeSlice>::const_iterator GradiveqRing::first_whole(std::size_t layer,
                                                                  std::size_t slice) const {
  const auto& whole = step_.whole[layer];
  return std::lower_bound(whole.begin(), whole.end(), slice,
                          [](const WholeSlice& w, std::size_t s) { return w.slice < s; });
}

template <typename Visit>
void GradiveqRing::for_parts(const Unit& unit, std::span<float> wire, Visit visit) const {
  const Basis& basis = layers_[unit.layer].basis;
  const auto& whole = step_.whole[unit.layer];
  auto next = first_whole(unit.layer, unit.begin);
  std::size_t slice = unit.begin;
  const std::size_t end = unit.begin + unit.count;
  while (slice < end) {
    const std::size_t stop = next == whole.end() ? end : std::min(end, next->slice);
    if (stop > slice) {
      const std::size_t floats = (stop - slice) * wire_rank(layers_[unit.layer]);
      visit(Run{unit.layer, slice, stop - slice}, nullptr, wire.first(floats));
      wire = wire.subspan(floats);
      slice = stop;
    }
    if (slice < end) {
      visit(Run{unit.layer, slice, 1}, &*next++, wire.first(basis.slice()));
      wire = wire.subspan(basis.slice());
      ++slice;
    }
  }
}

void GradiveqRing::encode(UnitRange range) {
  for (std::size_t u = range.begin; u < range.end; ++u) encode_unit(units_[u], wire_floats(u));
}

void GradiveqRing::encode_unit(const Unit& unit, std::span<float> wire) {
  const GradiveqLayer& layer = layers_[unit.layer];
  if (unit.content == Content::votes) {
    std::copy(step_.votes.begin(), step_.votes.end(), wire.begin());
    return;
  }
  if (unit.content == Content::elements) {
    encode_elements(layer, unit.begin, wire);
    return;
  }
  for_parts(unit, wire, [&](const Run& run, const WholeSlice* whole, std::span<float> part) {
    if (whole != nullptr) {
      encode_whole(run, whole->kind, part);
      if (apart_ != nullptr) apart_->skip(run);
    } else if (apart_ != nullptr) {
      const auto tile = std::span(apart_tile_).first(run.count * layer.basis.rank());
      encode_projected(layer, run, tile);
      apart_->send(run, tile);
    } else {
      encode_projected(layer, run, part);
    }
  });
}

void GradiveqRing::decode(UnitRange range) {
  for (std::size_t u = range.begin; u < range.end; ++u) {
    // Before any part of the unit is delivered: a unit is delivered whole or not at all.
    require_finite_sum(units_[u], wire_floats(u));
    decode_unit(units_[u], wire_floats(u));
    delivered_[u] = 1;
  }
}

void GradiveqRing::decode_unit(const Unit& unit, std::span<float> wire) {
  const GradiveqLayer& layer = layers_[unit.layer];
  if (unit.content == Content::elements) decode_whole(layer, unit.begin, wire, true);
  if (unit.content != Content::slices) return;
  for_parts(unit, wire, [&](const Run& run, const WholeSlice* whole, std::span<float> part) {
    if (whole != nullptr) {
      const bool flushed = whole->kind == WholeSlice::Kind::flush;
      decode_whole(layer, run.slice * layer.basis.slice(), part, flushed);
      if (apart_ != nullptr && flushed && !step_.fields.kept.empty()) apart_->forget_owed(run);
    } else if (apart_ != nullptr) {
      const auto tile = std::span(apart_tile_).first(run.count * layer.basis.rank());
      apart_->sum(run, tile);
      decode_projected(layer, run, tile);
    } else {
      decode_projected(layer, run, part);
    }
  });
}

std::span<float> GradiveqRing::rest() {
  return std::span(wire_).first(ends_.back() + apart_->moments());
}

std::span<float> GradiveqRing::moments() {
  return rest().subspan(ends_.back());
}

void GradiveqRing::deliver() {
  for (std::size_t u = 0; u < units_.size(); ++u) require_finite_sum(units_[u], wire_floats(u));
  if (!apart_->finite() || kernels::first_nonfinite(moments()) != moments().size()) {
    throw Error(ErrorCode::bad_input,
                fmt::format("gradiveq: the sum over the {} ranks of their projections is not "
                            "finite; gradients are too large, or a peer sent nonsense",
                            step_.world));
  }
  apart_->finish(moments());
  decode({0, units_.size()});
}

void GradiveqRing::encode_projected(const GradiveqLayer& layer, const Run& run,
                                    std::span<float> projections) {
  const Basis& basis = layer.basis;
  const Slicing& slicing = layer.slicing();
  const UnitRange places{run.slice * basis.slice(), (run.slice + run.count) * basis.slice()};
  const auto tile = std::span(tile_).first(places.size());
  kernels::center(fetch(slicing, std::span<const float>(step_.fields.values), places, values_copy_),
                  fetch(slicing, step_.fields.mean, places, mean_copy_), layer.mean_share * share_,
                  tile);
  if (layer.fresh && !step_.fields.kept.empty()) {
    kernels::add(tile,
                 fetch(slicing, std::span<const float>(step_.fields.kept), places, kept_copy_));
  }
  const auto ahead = ahead_of(slicing, places, {step_.fields.values, step_.fields.mean});
  const std::size_t stride = basis.projected_stride();
  if (stride == basis.rank()) {
    basis.project(tile, projections, ahead);
    return;
  }
  const auto projected = std::span(projected_).first(run.count * stride);
  basis.project(tile, projected, ahead);
  for (std::size_t i = 0; i < run.count; ++i) {
    std::copy_n(&projected[i * stride], basis.rank(), &projections[i * basis.rank()]);
  }
}

void GradiveqRing::decode_projected(const GradiveqLayer& layer, const Run& run,
                                    std::span<const float> projections) {
  const Basis& basis = layer.basis;
  const Slicing& slicing = layer.slicing();
  const Fields& fields = step_.fields;
  const UnitRange places{run.slice * basis.slice(), (run.slice + run.count) * basis.slice()};
  const std::size_t stride = basis.rebuilt_stride();
  basis.rebuild(projections, std::span(tile_).first(run.count * stride),
                ahead_of(slicing, places, {fields.values, fields.mean, fields.kept}));
  for (std::size_t i = 1; i < run.count && stride != basis.slice(); ++i) {
    std::memmove(&tile_[i * basis.slice()], &tile_[i * stride], basis.slice() * sizeof(float));
  }
  const auto values = fetch(slicing, fields.values, places, values_copy_);
  const auto kept =
      fields.kept.empty() ? fields.kept : fetch(slicing, fields.kept, places, kept_copy_);
  kernels::deliver({.decoded = std::span(tile_).first(places.size()),
                    .mean = fetch(slicing, fields.mean, places, mean_copy_),
                    .own_mean = layer.mean_share * share_,
                    .whole_mean = layer.mean_share,
                    .scale = share_},
                   kept, values);
  give_back(slicing, values, places.begin, fields.values);
  if (!kept.empty()) give_back(slicing, kept, places.begin, fields.kept);
}

void GradiveqRing::encode_whole(const Run& run, WholeSlice::Kind kind, std::span<float> wire) {
  const GradiveqLayer& layer = layers_[run.layer];
  const Slicing& slicing = layer.slicing();
  const std::size_t place = run.slice * slicing.slice();
  slicing.gather(step_.fields.values, place, wire);
  if (kind == WholeSlice::Kind::sample || step_.fields.kept.empty()) return;
  const auto kept = std::span(kept_copy_).first(wire.size());
  slicing.gather(step_.fields.kept, place, kept);
  if (!layer.fresh) remove_projection(layer.basis, kept);
  add_owed(run, kept, Owed::stays);
  kernels::add(wire, kept);
}

void GradiveqRing::encode_elements(const GradiveqLayer& layer, std::size_t place,
                                   std::span<float> wire) {
  layer.slicing().gather(step_.fields.values, place, wire);
  if (step_.fields.kept.empty()) return;
  const auto kept = std::span(kept_copy_).first(wire.size());
  layer.slicing().gather(step_.fields.kept, place, kept);
  kernels::add(wire, kept);
}

void GradiveqRing::decode_whole(const GradiveqLayer& layer, std::size_t place,
                                std::span<const float> wire, bool clears) {
  const auto run = std::span(values_copy_).first(wire.size());
  std::copy(wire.begin(), wire.end(), run.begin());
  kernels::scale(run, share_);
  layer.slicing().scatter(run, place, step_.fields.values);
  if (!clears || step_.fields.kept.empty()) return;
  std::fill(run.begin(), run.end(), 0.0f);
  layer.slicing().scatter(run, place, step_.fields.kept);
}

void GradiveqRing::require_finite_sum(const Unit& unit, std::span<const float> sum) const {
  const auto bad = kernels::first_nonfinite(sum);
  if (bad == sum.size()) return;
  throw Error(ErrorCode::bad_input,
              fmt::format("gradiveq: the sum over the {} ranks of what was sent for tensor '{}' is "
                          "{}; gradients are too large, or a peer sent nonsense",
                          step_.world, layers_[unit.layer].name, sum[bad]));
}

void GradiveqRing::remove_projection(const Basis& basis, std::span<float> slices) {
  const std::size_t count = slices.size() / basis.slice();
  const std::size_t stride = basis.projected_stride();
  const auto projected = std::span(projected_).first(count * stride);
  basis.project(slices, projected);
  for (std::size_t i = 1; i < count && stride != basis.rank(); ++i) {
    std::memmove(&projected[i * basis.rank()], &projected[i * stride],
                 basis.rank() * sizeof(float));
  }
  const auto rebuilt = std::span(tile_).first(count * basis.rebuilt_stride());
  basis.rebuild(projected.first(count * basis.rank()), rebuilt);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k < basis.slice(); ++k) {
      slices[i * basis.slice() + k] -= rebuilt[i * basis.rebuilt_stride() + k];
    }
  }
}

void GradiveqRing::add_owed(const Run& run, std::span<float> slices, Owed then) {
  if (apart_ == nullptr) return;
  const Basis& basis = layers_[run.layer].basis;
  const auto owed = std::span(apart_tile_).first(run.count * basis.rank());
  apart_->owed(run, owed);
  const auto rebuilt = std::span(tile_).first(run.count * basis.rebuilt_stride());
  basis.rebuild(owed, rebuilt);
  for (std::size_t i = 0; i < run.count; ++i) {
    kernels::add(slices.subspan(i * basis.slice(), basis.slice()),
                 rebuilt.subspan(i * basis.rebuilt_stride(), basis.slice()));
  }
  if (then == Owed::goes) apart_->forget_owed(run);
}

void GradiveqRing::settle(std::size_t l, const Fields& fields) {
  const GradiveqLayer& layer = layers_[l];
  if (fields.kept.empty() || !layer.compressed() || layer.fresh) return;
  const Slicing& slicing = layer.slicing();
  for (std::size_t slice = 0; slice < slicing.slices(); slice += slices_per_unit_[l]) {
    const std::size_t end = std::min(slice + slices_per_unit_[l], slicing.slices());
    const UnitRange places{slice * slicing.slice(), end * slicing.slice()};
    const auto kept = fetch(slicing, fields.kept, places, kept_copy_);
    remove_projection(layer.basis, kept);
    add_owed({l, slice, end - slice}, kept, Owed::goes);
    give_back(slicing, kept, places.begin, fields.kept);
  }
}

void GradiveqRing::put_back() {
  const Fields& fields = step_.fields;
  if (fields.kept.empty()) return;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Unit& unit = units_[u];
    if (unit.content == Content::votes) continue;
    const GradiveqLayer& layer = layers_[unit.layer];
    const Slicing& slicing = layer.slicing();
    const bool slices = unit.content == Content::slices;
    const std::size_t scale = slices ? slicing.slice() : 1;
    const UnitRange places{unit.begin * scale, (unit.begin + unit.count) * scale};
    const auto kept = fetch(slicing, fields.kept, places, kept_copy_);
    // Before anything of a fresh layer was sent, there is nothing to take off.
    if (slices && (!layer.fresh || delivered_[u] != 0)) remove_projection(layer.basis, kept);
    if (slices) add_owed({unit.layer, unit.begin, unit.count}, kept, Owed::goes);
    if (delivered_[u] == 0) {
      kernels::add(kept,
                   fetch(slicing, std::span<const float>(fields.values), places, values_copy_));
    }
    give_back(slicing, kept, places.begin, fields.kept);
  }
}

std::span<const float> GradiveqRing::whole_sum(std::size_t layer, std::size_t slice) const {
  const Basis& basis = layers_[layer].basis;
  std::size_t at = ends_[unit_of(layer, slice)];
  std::size_t before = slice - slice % slices_per_unit_[layer];
  for (auto next = first_whole(layer, before);; ++next) {
    at += (next->slice - before) * wire_rank(layers_[layer]);
    if (next->slice == slice) break;
    at += basis.slice();
    before = next->slice + 1;
  }
  return std::span(wire_).subspan(at, basis.slice());
}

std::span<const float> GradiveqRing::vote_sums() const {
  if (units_.empty()) return {};
  const std::size_t begin = ends_[ends_.size() - 2];
  return std::span(wire_).subspan(begin, ends_.back() - begin);
}

}  // namespace thinreduce
