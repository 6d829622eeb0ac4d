// Linear, convolution and embedding layers that can sum the second moments (second_moment.h) of
// their gradients in backward. Unless watched, they behave as the layers of libtorch.
#pragma once

#include <torch/torch.h>

#include <optional>

namespace thinreduce::train {

// Tensors to which a layer adds its second moments; `bias` may be undefined.
struct LayerMoments {
  torch::Tensor weight;
  torch::Tensor bias;
};

class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  torch::Tensor forward(const torch::Tensor& input);
  // Takes effect at the next forward; nullopt stops it. The layer must outlive the backward.
  void watch(std::optional<LayerMoments> moments) { moments_ = std::move(moments); }

 private:
  std::optional<LayerMoments> moments_;
};
TORCH_MODULE(Linear);

// When watched, it computes each sample's own gradient; their sum is the gradient, which then needs
// no computation of its own.
class Conv2dImpl : public torch::nn::Conv2dImpl {
 public:
  using torch::nn::Conv2dImpl::Conv2dImpl;
  torch::Tensor forward(const torch::Tensor& input);
  void watch(std::optional<LayerMoments> moments) { moments_ = std::move(moments); }

 private:
  std::optional<LayerMoments> moments_;
};
TORCH_MODULE(Conv2d);

class EmbeddingImpl : public torch::nn::EmbeddingImpl {
 public:
  using torch::nn::EmbeddingImpl::EmbeddingImpl;
  // `indices` is (batch, positions).
  torch::Tensor forward(const torch::Tensor& indices);
  void watch(std::optional<LayerMoments> moments) { moments_ = std::move(moments); }

 private:
  std::optional<LayerMoments> moments_;
};
TORCH_MODULE(Embedding);

}  // namespace thinreduce::train
