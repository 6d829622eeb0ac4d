// Linear and convolution layers that can add up the second moments of their gradients in backward;
// second_moment.h says what those are. Unwatched, they are torch's own layers.
#pragma once

#include <torch/torch.h>

#include <optional>

namespace thinreduce::train {

// Where a layer adds its second moments; `bias` may be undefined.
struct LayerMoments {
  torch::Tensor weight;
  torch::Tensor bias;
};

class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  torch::Tensor forward(const torch::Tensor& input);
  // From the next forward on; nullopt: no more. This layer must outlive the backward.
  void watch(std::optional<LayerMoments> moments) { moments_ = std::move(moments); }

 private:
  std::optional<LayerMoments> moments_;
};
TORCH_MODULE(Linear);

// Watched, it computes each sample's own gradient; the gradient is their sum, so it costs no
// second computation.
class Conv2dImpl : public torch::nn::Conv2dImpl {
 public:
  using torch::nn::Conv2dImpl::Conv2dImpl;
  torch::Tensor forward(const torch::Tensor& input);
  void watch(std::optional<LayerMoments> moments) { moments_ = std::move(moments); }

 private:
  std::optional<LayerMoments> moments_;
};
TORCH_MODULE(Conv2d);

}  // namespace thinreduce::train
