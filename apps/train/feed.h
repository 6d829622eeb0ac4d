// The samples of a rank as tensors.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>

#include "apps/train/dataset.h"
#include "apps/train/model_info.h"
#include "apps/train/options.h"

namespace thinreduce::train {

// Images and their labels, or windows of text and the characters that follow.
struct Samples {
  torch::Tensor inputs;
  torch::Tensor targets;
};

class Feed {
 public:
  Feed() = default;
  virtual ~Feed() = default;
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  [[nodiscard]] virtual std::size_t steps_per_epoch() const = 0;
  [[nodiscard]] virtual std::size_t test_samples() const = 0;
  // Returns this rank's samples of a step, which are valid until the next call. Steps count from 0.
  virtual const Samples& training(std::uint64_t step) = 0;
  [[nodiscard]] virtual Samples test(std::size_t first, std::size_t count) const = 0;
};

// `options` must be settled; `data` must outlive the result.
[[nodiscard]] std::unique_ptr<Feed> make_feed(const TrainOptions& options, const Dataset& data,
                                              int rank, int ranks);
// Returns tensors of a model's shapes, not initialised.
[[nodiscard]] Samples empty_samples(const ModelInfo& model, std::size_t count);

// Returns the cross entropy of a network's output: the mean over all targets.
[[nodiscard]] torch::Tensor mean_loss(const torch::Tensor& scores, const torch::Tensor& targets,
                                      double label_smoothing);

}  // namespace thinreduce::train
