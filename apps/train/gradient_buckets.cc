#include "apps/train/gradient_buckets.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>

#include "thinreduce/ensure.h"

namespace thinreduce::train {

using torch::autograd::Node;
using torch::autograd::variable_list;

// A parameter's gradient accumulator runs its hook after it has added to the gradient. It is
// destroyed unless something holds it.
struct GradientBuckets::Hooks {
  struct Hook {
    std::shared_ptr<Node> accumulator;
    std::uintptr_t key = 0;
  };
  std::vector<Hook> all;
};

GradientBuckets::GradientBuckets(torch::nn::Module& model, std::size_t bucket_floats,
                                 std::uint32_t first_id, WeightDecay weight_decay)
    : weight_decay_(std::move(weight_decay)), hooks_(std::make_unique<Hooks>()) {
  const auto parameters = model.named_parameters();
  std::vector<std::pair<std::string, torch::Tensor>> reversed;
  for (const auto& item : parameters) reversed.emplace(reversed.begin(), item.key(), item.value());

  for (const auto& [name, parameter] : reversed) {
    const auto size = static_cast<std::size_t>(parameter.numel());
    if (layouts_.empty() || layouts_.back().elements + size > bucket_floats) {
      const auto id = static_cast<std::uint32_t>(first_id + layouts_.size());
      layouts_.push_back({.id = id, .elements = 0, .tensors = {}});
      parameters_.emplace_back();
    }
    layouts_.back().add(name, parameter.sizes().vec());
    parameters_.back().push_back(parameter);
  }

  missing_.resize(layouts_.size());
  for (std::size_t bucket = 0; bucket < layouts_.size(); ++bucket) {
    const BucketLayout& layout = layouts_[bucket];
    values_.push_back(torch::zeros({static_cast<std::int64_t>(layout.elements)}));
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
      torch::Tensor& parameter = parameters_[bucket][i];
      parameter.mutable_grad() =
          values_[bucket]
              .narrow(0, static_cast<std::int64_t>(layout.tensors[i].offset), parameter.numel())
              .view_as(parameter);
      auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
      const auto key =
          accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
              [this, bucket](const variable_list& outputs, const variable_list&) {
                arrived(bucket);
                return outputs;
              }));
      hooks_->all.push_back({std::move(accumulator), key});
    }
  }
}

GradientBuckets::~GradientBuckets() {
  for (auto& hook : hooks_->all) hook.accumulator->del_post_hook(hook.key);
}

std::size_t GradientBuckets::elements() const {
  std::size_t sum = 0;
  for (const auto& layout : layouts_) sum += layout.elements;
  return sum;
}

void GradientBuckets::begin(OnReady on_ready) {
  on_ready_ = std::move(on_ready);
  next_ = 0;
  for (std::size_t bucket = 0; bucket < layouts_.size(); ++bucket) {
    missing_[bucket] = layouts_[bucket].tensors.size();
    std::memset(values_[bucket].data_ptr<float>(), 0, layouts_[bucket].elements * sizeof(float));
  }
}

void GradientBuckets::arrived(std::size_t bucket) {
  ensure(missing_[bucket] > 0, "a parameter receives one gradient per step", bucket,
         missing_[bucket]);
  --missing_[bucket];
  for (; next_ < layouts_.size() && missing_[next_] == 0; ++next_) {
    if (weight_decay_) {
      const torch::NoGradGuard no_gradients;
      for (auto& parameter : parameters_[next_]) {
        parameter.mutable_grad().add_(parameter, weight_decay_(parameter));
      }
    }
    on_ready_(layouts_[next_], {values_[next_].data_ptr<float>(), layouts_[next_].elements});
  }
}

void GradientBuckets::end() {
  ensure(next_ == layouts_.size(), "backward produces a gradient for every parameter", next_,
         layouts_.size());
  on_ready_ = nullptr;
}

}  // namespace thinreduce::train
