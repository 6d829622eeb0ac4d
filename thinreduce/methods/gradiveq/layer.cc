#include "thinreduce/methods/gradiveq/layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/gradiveq/matrix.h"

namespace thinreduce {
namespace {

// Returns the tensor in the order `layout`, or in all different orders for auto.
std::vector<Slicing> candidates_of(const Tensor& tensor, const std::string& layout) {
  if (layout != "auto") return {Slicing::of_tensor(tensor, layout)};
  std::vector<Slicing> candidates;
  for (const char* order : {"channel", "row", "paper"}) {
    const Slicing slicing = Slicing::of_tensor(tensor, order);
    if (std::ranges::count(candidates, slicing) == 0) candidates.push_back(slicing);
  }
  return candidates;
}

std::vector<GradiveqLayer> cut_layers(const GradiveqSettings& settings, const MethodSetup& setup) {
  std::vector<Tensor> tensors = setup.layout.tensors;
  const auto elements = static_cast<std::int64_t>(setup.layout.elements);
  const bool shapeless = tensors.empty();
  if (shapeless) tensors.push_back({.name = "the bucket", .shape = {elements}});
  std::vector<GradiveqLayer> layers;
  for (const Tensor& tensor : tensors) {
    if (tensor.elements() == 0) continue;
    GradiveqLayer layer;
    layer.name = tensor.name;
    layer.number = layers.size();
    layer.is_keeper = Archive::keeper_of(layer.number, setup.world) == setup.rank;
    layer.quantized = settings.quantizer && settings.feedback;
    layer.mean_weight = settings.phases ? 1 : 0;
    layer.candidates = candidates_of(tensor, settings.layout);
    for (Slicing& slicing : layer.candidates) {
      // Tensors of one dimension are not compressed.
      if (shapeless || tensor.shape.size() > 1) {
        slicing.cut(settings.slice > 0 ? settings.slice : slicing.natural_slice());
      }
      const SliceStatistics none(slicing.slice());
      if (layer.is_keeper) layer.evidence.push_back({none, none});
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace

GradiveqState::GradiveqState(const GradiveqSettings& options, const MethodSetup& setup)
    : settings(options),
      seed(setup.seed),
      bucket(setup.layout.id),
      layers(cut_layers(options, setup)),
      mean(setup.layout.elements),
      kept(options.feedback ? setup.layout.elements : 0) {
  std::size_t floats = kUnitFloats;
  for (const GradiveqLayer& layer : layers) {
    for (const Slicing& slicing : layer.candidates) {
      floats = std::max(floats, std::min(kRunSlices, slicing.slices()) * slicing.slice());
    }
  }
  GradiveqScratch& first = scratch.front();
  for (auto* const buffer :
       {&first.values, &first.mean, &first.kept, &first.slices, &first.projections}) {
    buffer->reserve(floats);
  }
}

std::span<float> projections_of(const GradiveqLayer& layer, Range places,
                                GradiveqScratch& scratch) {
  return room(scratch.projections, places.size() / layer.basis.slice() * layer.basis.size());
}

std::span<const float> projections_from(const float* by_coordinate, const GradiveqLayer& layer,
                                        Range places, GradiveqScratch& scratch) {
  const auto projections = projections_of(layer, places, scratch);
  for_projections(layer, places,
                  [&](std::size_t i, std::size_t at) { projections[at] = by_coordinate[i]; });
  return projections;
}

void add_rebuilt(const GradiveqLayer& layer, std::span<const float> projections, float factor,
                 std::span<float> slices, GradiveqScratch& scratch) {
  const auto within = room(scratch.slices, slices.size());
  layer.basis.rebuild(projections, within);
  kernels::add_multiple(slices, within, factor, slices);
}

void to_residual(const GradiveqLayer& layer, Range places, bool sent, std::span<float> kept,
                 GradiveqScratch& scratch) {
  if (sent) {
    const auto projections = projections_of(layer, places, scratch);
    layer.basis.project(kept, projections);
    add_rebuilt(layer, projections, -1, kept, scratch);
  }
  if (!layer.quantized) return;
  const auto owed = projections_from(layer.owed.data(), layer, places, scratch);
  add_rebuilt(layer, owed, 1, kept, scratch);
}

void to_residual(const GradiveqLayer& layer, std::span<float> kept, GradiveqScratch& scratch) {
  if (kept.empty() || !layer.compressed()) return;
  const Slicing& slicing = layer.slicing();
  const std::size_t run = kRunSlices * slicing.slice();
  for (std::size_t place = 0; place < slicing.sliced(); place += run) {
    const Range places{place, std::min(place + run, slicing.sliced())};
    const auto slices = slicing.view(kept, places, scratch.kept);
    to_residual(layer, places, !layer.fresh, slices, scratch);
    slicing.scatter(slices, place, kept);
  }
}

void to_residual(GradiveqState& state, std::span<float> kept) {
  for (const auto& layer : state.layers) to_residual(layer, kept, state.scratch.front());
}

void GradiveqLayer::state(Archive& archive) {
  std::size_t size = basis.size();
  std::vector<float> columns = basis.columns();
  std::vector<float> errors = owed;
  archive.flag("decided", decided);
  archive.count("order", chosen, candidates.size() - 1);
  archive.flag("fresh", fresh);
  archive.count("renewed at", renewed_at, Archive::kMaxSteps);
  archive.real("mean weight", mean_weight, {0, 1});
  archive.real("lost", lost, {0, kMaxEnergy});
  archive.real("energy", energy, {0, kMaxEnergy});
  archive.count("basis size", size, slicing().slice());
  archive.replicated("basis", columns);
  if (quantized) archive.summed("owed", errors, Archive::Length::any);
  // A state that is saved stays as it is, also if memory runs out meanwhile.
  if (archive.loading()) load_basis(columns, size, std::move(errors));
  const SliceStatistics none(slicing().slice());
  if (is_keeper && decided && evidence.size() != 1) evidence.assign(1, {none, none});
  archive.section(number, [&] {
    archive.real("agreement", agreement, {-1e100, 1e100});
    archive.real("strength", strength, {0, 1e100});
    for (Evidence& part : evidence) {
      part.fit.state(archive);
      part.test.state(archive);
    }
  });
}

void GradiveqLayer::load_basis(std::span<const float> columns, std::size_t size,
                               std::vector<float> errors) {
  const auto require = [&](bool holds, const std::string& expected) {
    if (holds) return;
    throw Error(ErrorCode::bad_state,
                fmt::format("gradiveq: state of tensor '{}': {}", name, expected));
  };
  require(decided || (chosen == 0 && size == 0),
          fmt::format("it has order {} and a basis of {} columns before an order was decided",
                      chosen, size));
  const std::size_t slice = slicing().slice();
  require(columns.size() == slice * size,
          fmt::format("a basis of {} columns of {} floats must have {} floats; the state has {}",
                      size, slice, size * slice, columns.size()));
  const std::string wrong = wrong_column(columns, size);
  require(wrong.empty(), wrong);
  basis = Basis(columns, slice, size);
  owed = no_errors(slicing(), size);
  if (!errors.empty()) {  // a rank that joins owes none
    require(errors.size() == owed.size(),
            fmt::format("the state must have {} errors, one per projection; it has {}", owed.size(),
                        errors.size()));
    owed = std::move(errors);
  }
}

}  // namespace thinreduce
