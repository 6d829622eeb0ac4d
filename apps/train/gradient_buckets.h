// Buckets of gradients: the gradient tensors of a model are views into a few contiguous buffers.
// Parameters are assigned to buckets in reverse order, as backward produces their gradients. A
// bucket is submitted as soon as it and all buckets before it are complete, so that all ranks
// submit the same buckets in the same order while backward continues.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "thinreduce/method/layout.h"

namespace thinreduce::train {

class GradientBuckets {
 public:
  // Called on the thread of backward.
  using OnReady = std::function<void(const BucketLayout& layout, std::span<float> values)>;

  // A bucket holds at most `bucket_floats`, or a single larger tensor. Ids count from `first_id`.
  // `model` must outlive this. `weight_decay` times a parameter is added to its gradient before it
  // is handed over, for methods that apply momentum: the optimizer would add it after them.
  using WeightDecay = std::function<double(const torch::Tensor& parameter)>;
  GradientBuckets(torch::nn::Module& model, std::size_t bucket_floats, std::uint32_t first_id,
                  WeightDecay weight_decay = nullptr);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  [[nodiscard]] const std::vector<BucketLayout>& layouts() const { return layouts_; }
  [[nodiscard]] std::size_t elements() const;

  // Zeroes the gradients before backward, which then calls `on_ready` once per bucket.
  void begin(OnReady on_ready);
  // Must be called after backward. Throws BrokenInvariant when a parameter has received no
  // gradient.
  void end();

 private:
  void arrived(std::size_t bucket);

  std::vector<BucketLayout> layouts_;
  const WeightDecay weight_decay_;
  std::vector<torch::Tensor> values_;                   // one per bucket
  std::vector<std::vector<torch::Tensor>> parameters_;  // per bucket
  std::vector<std::size_t> missing_;  // gradients that backward has yet to produce, per bucket
  std::size_t next_ = 0;              // bucket to submit next
  OnReady on_ready_;
  struct Hooks;
  std::unique_ptr<Hooks> hooks_;
};

}  // namespace thinreduce::train
