#include "thinreduce/methods/gradiveq/sum.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/gradiveq/matrix.h"

namespace thinreduce {
namespace {

// Units that a thread takes at a time, of about 8192 elements each.
constexpr std::size_t kUnitsPerBlock = 8;

std::size_t slices_per_unit(std::size_t basis_size) {
  const std::size_t slices = std::clamp<std::size_t>(kUnitFloats / basis_size, 1, kRunSlices);
  // The kernels take up to eight slices at a time.
  return slices >= 8 ? slices / 8 * 8 : slices;
}

}  // namespace

GradiveqSum::GradiveqSum(GradiveqState& state, const MethodSetup& setup)
    : state_(state), feedback_(state.settings.feedback) {
  if (state.settings.quantizer) quantized_.emplace(*state.settings.quantizer, state, setup);
}

void GradiveqSum::start(std::span<float> values, const Exchange& exchange) {
  exchange_ = &exchange;
  share_ = 1.0f / static_cast<float>(exchange.size());
  state_.scratch.resize(std::max(state_.scratch.size(), exchange.workers.threads()));
  parts_.assign(1, Part{});
  unit_begin_.clear();
  for (const GradiveqLayer& layer : state_.layers) add_layer(layer);
  unit_begin_.push_back(parts_.size() - 1);
  if (const std::size_t votes = state_.layers.size(); votes > 0) {
    add_part(SentAs::votes, votes, {0, votes}, votes);
    unit_begin_.push_back(parts_.size() - 1);
  }
  if (quantized_) quantized_->start();
  const std::size_t floats = parts_.back().wire + (quantized_ ? quantized_->moments() : 0);
  (void)room(wire_, floats);
  if (feedback_) (void)room(own_, floats);
  values_ = values;
}

// The last part is the end: it becomes the new part, and another end follows.
void GradiveqSum::add_part(SentAs sent_as, std::size_t layer, Range places, std::size_t floats) {
  const std::size_t wire = parts_.back().wire;
  parts_.back() = {sent_as, layer, places, wire};
  parts_.push_back({.layer = layer + 1, .places = {}, .wire = wire + floats});
}

void GradiveqSum::add_layer(const GradiveqLayer& layer) {
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
    add_part(sent_as, layer.number, {begin * k, end * k},
             sent_as == SentAs::projection ? (end - begin) * floats : k);
    begin = end;
  }
  for (std::size_t place = slices * k; place < slicing.elements(); place += kUnitFloats) {
    unit_begin_.push_back(parts_.size() - 1);
    const std::size_t end = std::min(place + kUnitFloats, slicing.elements());
    add_part(SentAs::unsliced, layer.number, {place, end}, end - place);
  }
}

std::span<float> GradiveqSum::wire_floats(Range parts) {
  const std::size_t begin = parts_[parts.begin].wire;
  return std::span(wire_).subspan(begin, parts_[parts.end].wire - begin);
}

std::size_t GradiveqSum::unit_bytes() const {
  return std::max<std::size_t>(1, parts_.back().wire * sizeof(float) / units());
}

std::span<std::byte> GradiveqSum::wire(Range range, int /*summed*/) {
  return std::as_writable_bytes(wire_floats(parts_of(range)));
}

void GradiveqSum::add(Range range, int /*summed*/, std::span<const std::byte> incoming,
                      int /*peer*/) {
  const std::span<float> own = wire_floats(parts_of(range));
  kernels::add(own, {reinterpret_cast<const float*>(incoming.data()), own.size()});
}

template <typename Work>
void GradiveqSum::for_parts(Range units, const Work& work) {
  exchange_->workers.for_runs(units.size(), kUnitsPerBlock,
                              [&](std::size_t first, std::size_t count, std::size_t thread) {
                                const Range run{units.begin + first, units.begin + first + count};
                                const Range parts = parts_of(run);
                                for (std::size_t p = parts.begin; p < parts.end; ++p) {
                                  work(parts_[p], wire_floats({p, p + 1}), state_.scratch[thread]);
                                }
                              });
}

void GradiveqSum::encode(Range range) {
  for_parts(range, [&](Part& part, std::span<float> wire, GradiveqScratch& scratch) {
    if (part.sent_as == SentAs::votes) {
      for (std::size_t l = 0; l < wire.size(); ++l) {
        wire[l] = state_.layers[l].votes(state_.settings.trigger) ? 1.0f : 0.0f;
      }
    } else if (part.sent_as == SentAs::projection) {
      project(part, wire, scratch);
    } else {
      encode_whole(part, wire, scratch);
    }
    if (feedback_) std::copy(wire.begin(), wire.end(), &own_[part.wire]);
  });
}

void GradiveqSum::decode(Range range, int /*peer*/) {
  for_parts(range, [&](Part& part, std::span<const float> wire, GradiveqScratch& scratch) {
    require_finite(part, wire);
    if (part.sent_as == SentAs::projection) {
      rebuild(part, wire, scratch);
    } else if (part.sent_as != SentAs::votes) {
      decode_whole(part, wire, scratch);
    }
    part.delivered = true;
  });
}

void GradiveqSum::require_finite(const Part& part, std::span<const float> sum) const {
  if (kernels::first_nonfinite(sum) == sum.size()) return;
  require_finite_sum(*exchange_, sum,
                     part.sent_as == SentAs::votes
                         ? "vote"
                         : fmt::format("value sent for tensor '{}'", layer_of(part).name));
}

void GradiveqSum::reduce(std::uint64_t step, Exchange& exchange) {
  if (!quantized_) return state_.settings.sum(exchange, *this);
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

std::span<float> GradiveqSum::values_of(const Part& part, GradiveqScratch& scratch) const {
  return layer_of(part).slicing().view(values_, part.places, scratch.values);
}
std::span<float> GradiveqSum::mean_of(const Part& part, GradiveqScratch& scratch) const {
  return layer_of(part).slicing().view(std::span(state_.mean), part.places, scratch.mean);
}
std::span<float> GradiveqSum::kept_of(const Part& part, GradiveqScratch& scratch) const {
  return layer_of(part).slicing().view(std::span(state_.kept), part.places, scratch.kept);
}

// Returns the slices after those of a part: their memory in a bucket, if a layer's order is that of
// the memory, for a product to prefetch.
std::span<const float> GradiveqSum::next(const Part& part, std::span<const float> bucket) const {
  const Slicing& slicing = layer_of(part).slicing();
  const std::size_t end = part.places.end;
  if (!slicing.contiguous() || bucket.empty()) return {};
  return slicing.memory(bucket, {end, std::min(end + part.places.size(), slicing.sliced())});
}

// g' = U^T (g - weight * mean / N). A fresh basis has sent nothing of the residual yet.
void GradiveqSum::project(const Part& part, std::span<float> wire, GradiveqScratch& scratch) {
  const GradiveqLayer& layer = layer_of(part);
  const auto slices = room(scratch.slices, part.places.size());
  kernels::add_multiple(values_of(part, scratch), mean_of(part, scratch),
                        -layer.mean_weight * share_, slices);
  if (feedback_ && layer.fresh) kernels::add(slices, kept_of(part, scratch));
  const std::array ahead{next(part, values_), next(part, state_.mean)};
  if (!quantized_) return layer.basis.project(slices, wire, ahead);
  const auto projections = projections_of(layer, part.places, scratch);
  layer.basis.project(slices, projections, ahead);
  float* const own = quantized_->own(layer);
  for_projections(layer, part.places, [&](std::size_t i, std::size_t at) {
    own[i] = layer.quantized ? projections[at] + layer.owed[i] : projections[at];
  });
}

// mean over the ranks = (U sum + weight * mean) / N. It replaces the gradient, which `kept` takes
// in.
void GradiveqSum::rebuild(const Part& part, std::span<const float> wire, GradiveqScratch& scratch) {
  const GradiveqLayer& layer = layer_of(part);
  const Slicing& slicing = layer.slicing();
  if (quantized_) wire = projections_from(quantized_->sum(layer), layer, part.places, scratch);
  const auto slices = room(scratch.slices, part.places.size());
  const std::array ahead{next(part, values_), next(part, state_.mean), next(part, state_.kept)};
  layer.basis.rebuild(wire, slices, std::span(ahead).first(feedback_ ? 3 : 2));
  const auto values = values_of(part, scratch);
  const auto mean = mean_of(part, scratch);
  const auto kept = feedback_ ? kept_of(part, scratch) : std::span<float>{};
  kernels::deliver({.rebuilt = slices, .mean = mean, .weight = layer.mean_weight, .scale = share_},
                   kept, values);
  slicing.scatter(values, part.places.begin, values_);
  if (feedback_) slicing.scatter(kept, part.places.begin, state_.kept);
}

void GradiveqSum::encode_whole(const Part& part, std::span<float> wire, GradiveqScratch& scratch) {
  const GradiveqLayer& layer = layer_of(part);
  layer.slicing().gather(values_, part.places.begin, wire);
  if (part.sent_as == SentAs::sample || !feedback_) return;
  const auto residual = room(scratch.kept, wire.size());
  layer.slicing().gather(state_.kept, part.places.begin, residual);
  if (part.sent_as == SentAs::flush) {
    to_residual(layer, part.places, !layer.fresh, residual, scratch);
  }
  kernels::add(wire, residual);
}

void GradiveqSum::decode_whole(const Part& part, std::span<const float> wire,
                               GradiveqScratch& scratch) {
  const Slicing& slicing = layer_of(part).slicing();
  const auto out = room(scratch.slices, wire.size());
  std::ranges::copy(wire, out.begin());
  kernels::scale(out, share_);
  slicing.scatter(out, part.places.begin, values_);
  if (part.sent_as == SentAs::sample || !feedback_) return;
  std::ranges::fill(out, 0.0f);
  slicing.scatter(out, part.places.begin, state_.kept);
}

void GradiveqSum::finish() {
  if (quantized_) quantized_->keep_errors();
  values_ = {};
}

void GradiveqSum::take_back(std::span<const float> values) {
  if (values_.empty()) {  // nothing was encoded
    to_residual(state_, state_.kept);
    kernels::add(state_.kept, values);
  } else {
    for (const Part& part : parts_) take_back(part, state_.scratch.front());
  }
  for (GradiveqLayer& layer : state_.layers) std::ranges::fill(layer.owed, 0.0f);
  values_ = {};
}

// The gradient is in the bucket or, if the mean has replaced it there, in what this rank sent.
void GradiveqSum::take_back(const Part& part, GradiveqScratch& scratch) {
  if (part.sent_as == SentAs::votes) return;
  const GradiveqLayer& layer = layer_of(part);
  const auto kept = kept_of(part, scratch);
  if (part.delivered && part.sent_as == SentAs::projection) {
    restore_projected(part, kept, scratch);
  } else {
    // A flushed slice that is delivered has nothing left, not even errors.
    const bool emptied = part.sent_as == SentAs::flush && part.delivered;
    if (part.sent_as != SentAs::unsliced && !emptied) {
      to_residual(layer, part.places, !layer.fresh, kept, scratch);
    }
    kernels::add(kept, part.delivered ? std::span(own_).subspan(part.wire, kept.size())
                                      : values_of(part, scratch));
  }
  layer.slicing().scatter(kept, part.places.begin, state_.kept);
}

// `kept` has taken in g - weight * mean / N. Of all that, the part within the basis is replaced by
// what was sent.
void GradiveqSum::restore_projected(const Part& part, std::span<float> kept,
                                    GradiveqScratch& scratch) {
  const GradiveqLayer& layer = layer_of(part);
  const auto within = projections_of(layer, part.places, scratch);
  layer.basis.project(kept, within);
  add_rebuilt(layer, within, -1, kept, scratch);
  const auto sent = quantized_
                        ? projections_from(quantized_->own(layer), layer, part.places, scratch)
                        : std::span<const float>(own_).subspan(part.wire, within.size());
  add_rebuilt(layer, sent, 1, kept, scratch);
  kernels::add_multiple(kept, mean_of(part, scratch), layer.mean_weight * share_, kept);
}

bool GradiveqSum::sample_sum(const GradiveqLayer& layer, std::size_t slice,
                             std::span<float> sum) const {
  const std::size_t place = layer.slicing().places_of(slice).begin;
  if (!layer.compressed()) {
    layer.slicing().gather(values_, place, sum);
    kernels::scale(sum, static_cast<float>(exchange_->size()));
    return true;
  }
  if (layer.sent_as[slice] != SentAs::sample) return false;
  const auto where = [](const Part& part) { return std::pair(part.layer, part.places.begin); };
  const auto part = std::ranges::lower_bound(parts_, std::pair(layer.number, place), {}, where);
  std::copy_n(&wire_[part->wire], sum.size(), sum.begin());
  return true;
}

std::span<const float> GradiveqSum::vote_sums() const {
  const std::size_t votes = state_.layers.size();
  return std::span(wire_).subspan(parts_.back().wire - votes, votes);
}

}  // namespace thinreduce
