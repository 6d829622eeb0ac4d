// The second moment of a gradient over the samples of a batch: per parameter, the sum over samples
// of (that sample's part of the gradient)^2. The loss is a mean over the batch, so a sample's part
// is its own gradient divided by the batch size, and the parts add up to the gradient.
//
// Normalisation layers have one-dimensional parameters, which are sent uncompressed: their second
// moments stay 0. After batch norm the samples of a batch influence one another; a sample's part is
// then the gradient that flows back through its own activations.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/method/layout.h"

namespace thinreduce::train {

// Second moments of all watched layers of a model, in the layout of its gradients.
class SecondMoments {
 public:
  // `model` must outlive this and use each of its layers once per forward.
  SecondMoments(torch::nn::Module& model, const std::vector<BucketLayout>& layouts);
  ~SecondMoments();
  SecondMoments(const SecondMoments&) = delete;
  SecondMoments& operator=(const SecondMoments&) = delete;

  // Zeroes all second moments. Call before forward.
  void begin();
  // Returns the second moments of a bucket, which are complete when its gradients are.
  [[nodiscard]] std::span<const float> of(const BucketLayout& layout) const;

 private:
  // Calls work(layer, name) for every layer that can be watched.
  template <typename Work>
  void for_layers(Work&& work);

  torch::nn::Module& model_;
  std::map<std::uint32_t, torch::Tensor> buckets_;   // by id
  std::map<std::string, torch::Tensor> parameters_;  // views of the buckets, by name
};

}  // namespace thinreduce::train
