#include "apps/train/second_moment.h"

#include <optional>

#include "apps/train/watched_layers.h"

namespace thinreduce::train {

SecondMoments::SecondMoments(torch::nn::Module& model, const std::vector<BucketLayout>& layouts)
    : model_(model) {
  for (const BucketLayout& layout : layouts) {
    auto& bucket = buckets_[layout.id];
    bucket = torch::zeros({static_cast<std::int64_t>(layout.elements)});
    for (const Tensor& tensor : layout.tensors) {
      parameters_[tensor.name] = bucket
                                     .narrow(0, static_cast<std::int64_t>(tensor.offset),
                                             static_cast<std::int64_t>(tensor.elements()))
                                     .view(tensor.shape);
    }
  }
  for_layers([&](auto& layer, const std::string& name) {
    LayerMoments moments{.weight = parameters_.at(name + ".weight"), .bias = {}};
    const auto bias = parameters_.find(name + ".bias");
    if (bias != parameters_.end()) moments.bias = bias->second;
    layer.watch(moments);
  });
}

SecondMoments::~SecondMoments() {
  for_layers([](auto& layer, const std::string&) { layer.watch(std::nullopt); });
}

template <typename Work>
void SecondMoments::for_layers(Work&& work) {
  for (const auto& item : model_.named_modules("", /*include_self=*/false)) {
    if (auto* linear = item.value()->as<LinearImpl>()) {
      work(*linear, item.key());
    } else if (auto* conv = item.value()->as<Conv2dImpl>()) {
      work(*conv, item.key());
    } else if (auto* embedding = item.value()->as<EmbeddingImpl>()) {
      work(*embedding, item.key());
    }
  }
}

void SecondMoments::begin() {
  for (auto& [id, bucket] : buckets_) bucket.zero_();
}

std::span<const float> SecondMoments::of(const BucketLayout& layout) const {
  const auto& bucket = buckets_.at(layout.id);
  return {bucket.data_ptr<float>(), static_cast<std::size_t>(bucket.numel())};
}

}  // namespace thinreduce::train
