// Gradients in buckets: the gradient tensors of a model are views into a few runs of memory that
// are reduced together. Buckets are filled in the reverse order of the layers, as backward produces
// them; each is handed over as soon as it is complete and all before it were, so that all ranks
// hand over the same buckets in the same order while backward goes on.
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

  // A bucket is closed before it would have more than `bucket_floats`; a tensor that is larger has
  // a bucket of its own. Ids count from `first_id`. `model` must stay.
  GradientBuckets(torch::nn::Module& model, std::size_t bucket_floats, std::uint32_t first_id);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  [[nodiscard]] const std::vector<BucketLayout>& layouts() const { return layouts_; }
  [[nodiscard]] std::size_t elements() const;

  // Before backward: gradients are zero again, and `on_ready` will get every bucket once.
  void begin(OnReady on_ready);
  // After backward. Throws BrokenInvariant when a parameter got no gradient.
  void end();

 private:
  void arrived(std::size_t bucket);

  std::vector<BucketLayout> layouts_;
  std::vector<torch::Tensor> values_;  // one a bucket
  std::vector<std::size_t> missing_;   // gradients of the bucket that backward still owes
  std::size_t next_ = 0;               // to be handed over
  OnReady on_ready_;
  struct Hooks;
  std::unique_ptr<Hooks> hooks_;
};

}  // namespace thinreduce::train
