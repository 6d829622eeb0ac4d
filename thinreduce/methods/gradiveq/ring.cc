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
// Units that a thread takes at a time, of about 8192 elements each.
constexpr std::size_t kUnitsPerBlock = 8;

std::size_t slices_per_unit(std::size_t basis_size) {
  const std::size_t slices = std::clamp<std::size_t>(kUnitFloats / basis_size, 1, kRunSlices);
  // The kernels take up to eight slices at a time.
  return slices >= 8 ? slices / 8 * 8 : slices;
}

void grow(std::vector<float>& values, std::size_t size) {
  if (values.size() < size) values.resize(size);
}

}  // namespace

GradiveqRing::GradiveqRing(const GradiveqSettings& settings, const MethodSetup& setup,
                           GradiveqState& state)
    : settings_(settings), state_(state) {
  if (settings.quantizer) quantized_.emplace(*settings.quantizer, setup, state.layers);
}

void GradiveqRing::start(std::span<float> values, const Exchange& exchange) {
  values_ = values;
  exchange_ = &exchange;
  scratch_.resize(std::max(scratch_.size(), exchange.workers.threads()));
  share_ = 1.0f / static_cast<float>(exchange.size());
  parts_.assign(1, Part{});
  unit_begin_.clear();
  const std::size_t layers = state_.layers.size();
  for (std::size_t l = 0; l < layers; ++l) add_layer(l);
  unit_begin_.push_back(parts_.size() - 1);
  if (layers > 0) {
    add_part(SentAs::votes, layers, {0, layers}, settings_.trigger > 0 ? layers : 0);
    unit_begin_.push_back(parts_.size() - 1);
  }
  std::size_t floats = parts_.back().wire;
  if (quantized_) {
    quantized_->start();
    floats += quantized_->moments();
  }
  grow(wire_, floats);
  if (!state_.kept.empty()) grow(own_, floats);
}

// The last part is the end: it becomes the new part, and another end follows.
void GradiveqRing::add_part(SentAs sent_as, std::size_t layer, UnitRange places,
                            std::size_t floats) {
  const std::size_t wire = parts_.back().wire;
  parts_.back() = {sent_as, layer, places, wire};
  parts_.push_back({.layer = layer + 1, .places = {}, .wire = wire + floats});
}

void GradiveqRing::add_layer(std::size_t l) {
  const GradiveqLayer& layer = state_.layers[l];
  const Slicing& slicing = layer.slicing();
  const std::size_t k = slicing.slice();
  const std::size_t slices = layer.compressed() ? slicing.slices() : 0;
  const std::size_t per_unit = slices > 0 ? slices_per_unit(layer.basis.size()) : 1;
  const std::size_t floats = quantized_ ? 0 : layer.basis.size();
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
  for (GradiveqScratch& scratch : scratch_) {
    grow(scratch.slices, std::max(kUnitFloats, per_unit * k));
    grow(scratch.projections, per_unit * layer.basis.size());
  }
  for (std::size_t place = slices * k; place < slicing.elements(); place += kUnitFloats) {
    unit_begin_.push_back(parts_.size() - 1);
    const std::size_t end = std::min(place + kUnitFloats, slicing.elements());
    add_part(SentAs::unsliced, l, {place, end}, end - place);
  }
}

std::span<float> GradiveqRing::projections_of(const Part& part, GradiveqScratch& scratch) const {
  const Basis& basis = state_.layers[part.layer].basis;
  return std::span(scratch.projections).first(part.places.size() / basis.slice() * basis.size());
}

std::span<float> GradiveqRing::wire_floats(UnitRange parts) {
  const std::size_t begin = parts_[parts.begin].wire;
  return std::span(wire_).subspan(begin, parts_[parts.end].wire - begin);
}

std::size_t GradiveqRing::unit_bytes() const {
  return std::max<std::size_t>(1, parts_.back().wire * sizeof(float) / units());
}

std::span<std::byte> GradiveqRing::wire(UnitRange range, int /*summed*/) {
  return std::as_writable_bytes(wire_floats(parts_of(range)));
}

void GradiveqRing::add(UnitRange range, int /*summed*/, std::span<const std::byte> incoming,
                       int /*peer*/) {
  const std::span<float> own = wire_floats(parts_of(range));
  kernels::add(own, {reinterpret_cast<const float*>(incoming.data()), own.size()});
}

template <typename Work>
void GradiveqRing::for_parts(UnitRange units, const Work& work) {
  exchange_->workers.for_runs(
      units.size(), kUnitsPerBlock, [&](std::size_t first, std::size_t count, std::size_t thread) {
        const UnitRange run{units.begin + first, units.begin + first + count};
        const UnitRange parts = parts_of(run);
        for (std::size_t p = parts.begin; p < parts.end; ++p) work(p, scratch_[thread]);
      });
}

void GradiveqRing::encode(UnitRange range) {
  for_parts(range, [&](std::size_t p, GradiveqScratch& scratch) {
    const Part& part = parts_[p];
    const auto wire = wire_floats({p, p + 1});
    if (part.sent_as == SentAs::votes) {
      for (std::size_t l = 0; l < wire.size(); ++l) wire[l] = state_.layers[l].vote;
    } else if (part.sent_as == SentAs::projection) {
      project(part, wire, scratch);
    } else {
      encode_whole(part, wire, scratch);
    }
    if (!own_.empty()) std::copy(wire.begin(), wire.end(), &own_[part.wire]);
  });
}

void GradiveqRing::decode(UnitRange range, int /*peer*/) {
  for_parts(range, [&](std::size_t p, GradiveqScratch& scratch) {
    Part& part = parts_[p];
    const auto wire = wire_floats({p, p + 1});
    require_finite(part, wire);
    if (part.sent_as == SentAs::projection) {
      rebuild(part, wire, scratch);
    } else if (part.sent_as != SentAs::votes) {
      decode_whole(part, wire, scratch);
    }
    part.delivered = true;
  });
}

void GradiveqRing::require_finite(const Part& part, std::span<const float> sum) const {
  if (kernels::first_nonfinite(sum) == sum.size()) return;
  const bool votes = part.sent_as == SentAs::votes;
  const std::string name = votes ? "" : state_.layers[part.layer].name;
  require_finite_sum(*exchange_, sum,
                     votes ? "vote" : fmt::format("value sent for tensor '{}'", name));
}

void GradiveqRing::reduce(std::uint64_t step, Exchange& exchange) {
  if (!quantized_) return settings_.sum(exchange, *this);
  // The quantizer needs all projections first, because they share scales. The sums are checked
  // before anything is delivered.
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

// g' = U^T (g - weight * mean / N). A fresh basis has sent nothing of the residual yet.
void GradiveqRing::project(const Part& part, std::span<float> wire, GradiveqScratch& scratch) {
  const GradiveqLayer& layer = state_.layers[part.layer];
  const Slicing& slicing = layer.slicing();
  const std::span<const float> values = values_;
  const std::span<const float> mean = state_.mean;
  const std::span<const float> kept = state_.kept;
  const auto slices = std::span(scratch.slices).first(part.places.size());
  kernels::add_multiple(slicing.view(values, part.places, scratch.values),
                        slicing.view(mean, part.places, scratch.mean), -layer.mean_weight * share_,
                        slices);
  if (layer.fresh && !kept.empty()) {
    kernels::add(slices, slicing.view(kept, part.places, scratch.kept));
  }
  const auto projections = quantized_ ? projections_of(part, scratch) : wire;
  layer.basis.project(slices, projections);
  if (quantized_) quantized_->put(part.layer, part.places, projections);
}

// mean over the ranks = (U sum + weight * mean) / N. `kept` takes in the gradient before it is
// replaced.
void GradiveqRing::rebuild(const Part& part, std::span<const float> wire,
                           GradiveqScratch& scratch) {
  const GradiveqLayer& layer = state_.layers[part.layer];
  const Slicing& slicing = layer.slicing();
  if (quantized_) {
    quantized_->get(part.layer, part.places, projections_of(part, scratch));
    wire = projections_of(part, scratch);
  }
  const auto slices = std::span(scratch.slices).first(part.places.size());
  layer.basis.rebuild(wire, slices);
  const auto values = slicing.view(values_, part.places, scratch.values);
  std::span<float> kept = state_.kept;
  if (!kept.empty()) kept = slicing.view(kept, part.places, scratch.kept);
  kernels::deliver({.decoded = slices,
                    .mean = slicing.view(std::span(state_.mean), part.places, scratch.mean),
                    .weight = layer.mean_weight,
                    .share = share_},
                   kept, values);
  slicing.scatter(values, part.places.begin, values_);
  if (!kept.empty()) slicing.scatter(kept, part.places.begin, state_.kept);
}

void GradiveqRing::encode_whole(const Part& part, std::span<float> wire, GradiveqScratch& scratch) {
  const GradiveqLayer& layer = state_.layers[part.layer];
  layer.slicing().gather(values_, part.places.begin, wire);
  if (part.sent_as == SentAs::sample || state_.kept.empty()) return;
  grow(scratch.kept, wire.size());
  const auto residual = std::span(scratch.kept).first(wire.size());
  layer.slicing().gather(state_.kept, part.places.begin, residual);
  if (part.sent_as == SentAs::flush) {
    to_residual(layer, part.places, !layer.fresh, residual, scratch);
  }
  kernels::add(wire, residual);
}

void GradiveqRing::decode_whole(const Part& part, std::span<const float> wire,
                                GradiveqScratch& scratch) {
  GradiveqLayer& layer = state_.layers[part.layer];
  const auto out = std::span(scratch.slices).first(wire.size());
  std::copy(wire.begin(), wire.end(), out.begin());
  kernels::scale(out, share_);
  layer.slicing().scatter(out, part.places.begin, values_);
  if (part.sent_as == SentAs::sample || state_.kept.empty()) return;
  std::fill(out.begin(), out.end(), 0.0f);
  layer.slicing().scatter(out, part.places.begin, state_.kept);
  if (part.sent_as == SentAs::flush && layer.quantized) {
    for_projections(layer, part.places, [&](std::size_t i, std::size_t) { layer.owed[i] = 0; });
  }
}

void GradiveqRing::take_back() {
  for (const Part& part : parts_) {
    if (part.sent_as == SentAs::votes) continue;
    const GradiveqLayer& layer = state_.layers[part.layer];
    const auto kept =
        layer.slicing().view(std::span(state_.kept), part.places, scratch_.front().kept);
    if (part.sent_as != SentAs::unsliced) {
      to_residual(layer, part.places, !layer.fresh || part.delivered, kept, scratch_.front());
    }
    add_gradient(part, kept);
    layer.slicing().scatter(kept, part.places.begin, state_.kept);
  }
  for (GradiveqLayer& layer : state_.layers) std::fill(layer.owed.begin(), layer.owed.end(), 0.0f);
}

void GradiveqRing::add_gradient(const Part& part, std::span<float> residual) {
  const GradiveqLayer& layer = state_.layers[part.layer];
  const Slicing& slicing = layer.slicing();
  if (!part.delivered) {
    kernels::add(residual, slicing.view(values_, part.places, scratch_.front().values));
  } else if (part.sent_as != SentAs::projection) {
    kernels::add(residual, std::span(own_).subspan(part.wire, residual.size()));
  } else {
    std::span<float> projections = projections_of(part, scratch_.front());
    if (quantized_) {
      quantized_->given(part.layer, part.places, projections);
    } else {
      projections = std::span(own_).subspan(part.wire, projections.size());
    }
    const auto within = std::span(scratch_.front().slices).first(residual.size());
    layer.basis.rebuild(projections, within);
    kernels::add(residual, within);
    // The mean was subtracted before the projection.
    kernels::add_multiple(residual,
                          slicing.view(std::span(state_.mean), part.places, scratch_.front().mean),
                          layer.mean_weight * share_, residual);
  }
}

std::span<const float> GradiveqRing::whole_sum(std::size_t layer, std::size_t place) const {
  const auto before = [](const Part& part, std::pair<std::size_t, std::size_t> wanted) {
    return std::pair(part.layer, part.places.begin) < wanted;
  };
  const auto part = std::lower_bound(parts_.begin(), parts_.end(), std::pair(layer, place), before);
  return std::span(wire_).subspan(part->wire, state_.layers[layer].slicing().slice());
}

std::span<const float> GradiveqRing::vote_sums() const {
  const std::size_t votes = settings_.trigger > 0 ? state_.layers.size() : 0;
  return std::span(wire_).subspan(parts_.back().wire - votes, votes);
}

}  // namespace thinreduce
