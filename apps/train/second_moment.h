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
#include <string>
#include <vector>

#include "thinreduce/method/layout.h"

namespace thinreduce::train {

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
  // work(layer, name) for every layer that can be watched.
  template <typename Work>
  void for_layers(Work&& work);

  torch::nn::Module& model_;
  std::map<std::uint32_t, torch::Tensor> buckets_;   // by id
  std::map<std::string, torch::Tensor> parameters_;  // views of those, by name
};

}  // namespace thinreduce::train
