// The second moment of a gradient over the samples of a batch: per parameter, the sum over samples
// of (that sample's part of the gradient)^2. The loss is a mean over the batch, so a sample's part
// is its own gradient divided by the batch size, and the parts add up to the gradient.
//
// Layers without parameters need nothing. Normalisation layers have one-dimensional parameters,
// which travel uncompressed: theirs is left 0. Behind batch norm the samples of a batch influence
// one another; a sample's part is then what flows back through its own activations.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "apps/train/watched_layers.h"
#include "thinreduce/methods/bucket.h"

namespace thinreduce::train {

// Where a layer's second moments are added; `bias` may be undefined.
struct LayerMoments {
  torch::Tensor weight;
  torch::Tensor bias;
};

// `input` (batch, ..., in), `delta` (batch, ..., out). With nothing between, the square of a
// product is the product of the squares: one more matrix product. Otherwise each sample sums over
// its positions first.
void add_linear_moments(const torch::Tensor& input, const torch::Tensor& delta,
                        LayerMoments moments);

// As a layer keeps them.
using ConvOptions = torch::nn::detail::ConvNdOptions<2>;

// `input` (batch, channels, height, width). Strides, padding with zeros, dilation and groups.
void add_conv_moments(const torch::Tensor& input, const torch::Tensor& delta,
                      const ConvOptions& options, LayerMoments moments);

// The second moments of all watched layers of a model, laid out as its gradients are.
class SecondMoments {
 public:
  // `model` must stay. Each of its layers is used once in a forward.
  SecondMoments(torch::nn::Module& model, const std::vector<BucketLayout>& layouts);
  ~SecondMoments();
  SecondMoments(const SecondMoments&) = delete;
  SecondMoments& operator=(const SecondMoments&) = delete;

  // Before forward: all are zero again.
  void begin();
  // Complete when all of the bucket's gradients are.
  [[nodiscard]] std::span<const float> of(const BucketLayout& layout) const;

 private:
  void watch(bool on);

  torch::nn::Module& model_;
  std::map<std::uint32_t, torch::Tensor> buckets_;   // by id
  std::map<std::string, torch::Tensor> parameters_;  // views of those, by name
};

}  // namespace thinreduce::train
