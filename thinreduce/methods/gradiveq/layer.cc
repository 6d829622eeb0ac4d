#include "thinreduce/methods/gradiveq/layer.h"

#include <fmt/format.h>

#include <algorithm>

#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce {
namespace {

std::vector<Slicing> cut_tensor(const GradiveqSettings& settings, const Tensor& tensor) {
  std::vector<std::string> orders{settings.layout};
  if (settings.layout == "auto") orders = {"channel", "row", "paper"};
  std::vector<Slicing> candidates;
  for (const auto& order : orders) {
    const Slicing slicing = Slicing::of_tensor(tensor, order);
    const auto same = [&](const Slicing& other) { return other.same_order(slicing); };
    if (std::none_of(candidates.begin(), candidates.end(), same)) candidates.push_back(slicing);
  }
  return candidates;
}

}  // namespace

std::vector<GradiveqLayer> cut_layers(const GradiveqSettings& settings, const MethodSetup& setup) {
  const BucketLayout& layout = setup.layout;
  std::vector<GradiveqLayer> layers;
  const auto add = [&](const std::string& name, std::vector<Slicing> candidates, bool sliced) {
    GradiveqLayer layer;
    layer.name = name;
    layer.owned = Archive::owner_of(layers.size(), setup.world) == setup.rank;
    layer.quantized = settings.quantizer && settings.feedback;
    layer.mean_weight = settings.phases ? 1 : 0;
    for (Slicing& slicing : candidates) {
      if (sliced) slicing.cut(settings.slice > 0 ? settings.slice : slicing.natural_slice());
      const SliceStatistics none(slicing.slice());
      if (layer.owned) layer.evidence.push_back({none, none});
    }
    layer.candidates = std::move(candidates);
    layers.push_back(std::move(layer));
  };
  if (layout.tensors.empty() && layout.elements > 0) {
    add("the bucket", {Slicing::of_run(0, layout.elements)}, true);
  }
  for (const Tensor& tensor : layout.tensors) {
    if (tensor.elements() == 0) continue;
    add(tensor.name, cut_tensor(settings, tensor), tensor.shape.size() >= 2);
  }
  return layers;
}

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

void GradiveqLayer::take_sample(std::size_t candidate, std::span<const float> sum,
                                std::span<const float> mean, float weight) {
  if (candidate == 0) {
    agreement += dot(sum, mean);
    strength += dot(mean, mean);
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    pending.push_back((sum[i] - mean[i] * mean_weight) * weight);
  }
}

void GradiveqLayer::add_samples(SliceStatistics& statistics) {
  statistics.add(pending);
  pending.clear();
}

void GradiveqLayer::set_basis(std::span<const float> columns, std::size_t size) {
  basis = size == 0 ? Basis() : Basis(columns, slicing().slice(), size);
  owed.assign(quantized ? slicing().slices() * size : 0, 0.0f);
}

void GradiveqLayer::state(Archive& archive, std::size_t number) {
  std::size_t size = basis.size();
  std::vector<float> columns = basis.columns();
  std::vector<float> scalars{mean_weight, lost, energy};
  show_number(archive, "decided", decided);
  show_number(archive, "order", chosen);
  show_number(archive, "fresh", fresh);
  archive.number("renewed at", renewed_at);
  show_number(archive, "basis size", size);
  archive.replicated("basis", columns);
  archive.replicated("mean weight, loss and energy", scalars);
  if (chosen >= candidates.size() || size > slicing().slice() ||
      columns.size() != slicing().slice() * size ||
      kernels::first_nonfinite(columns) != columns.size() || scalars.size() != 3 ||
      !(scalars[0] >= 0 && scalars[0] <= 1)) {
    throw Error(ErrorCode::bad_state,
                fmt::format("gradiveq: tensor '{}' has no order {} with a basis of {} columns, {} "
                            "floats, as the state says",
                            name, chosen, size, columns.size()));
  }
  mean_weight = scalars[0];
  lost = scalars[1];
  energy = scalars[2];
  std::vector<float> errors = std::move(owed);
  if (quantized) archive.summed("owed", errors, Archive::Length::any);
  set_basis(columns, size);
  if (errors.size() != owed.size() || kernels::first_nonfinite(errors) != errors.size()) {
    throw Error(
        ErrorCode::bad_state,
        fmt::format("gradiveq: the state has {} projection errors of tensor '{}', its basis "
                    "needs {} finite ones",
                    errors.size(), name, owed.size()));
  }
  owed = std::move(errors);
  archive.owned(number, [&] {
    show_number(archive, "agreement", agreement);
    show_number(archive, "strength", strength);
    pending.clear();
    const SliceStatistics none(slicing().slice());
    if (decided && evidence.size() != 1) evidence.assign(1, {none, none});
    for (Evidence& part : evidence) {
      part.fit.state(archive);
      part.test.state(archive);
    }
  });
}

}  // namespace thinreduce
