// The optimizers of libtorch by name.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "apps/train/options.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::train {

// Returns whether the gradients must contain weight decay before they are reduced: the method then
// applies momentum, and what the optimizer adds afterwards would lack the factor 1 / (1 -
// momentum).
inline bool decays_before_momentum(const TrainOptions& options) {
  return Spec::parse(options.method).momentum_inside();
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainOptions& options,
                                                               torch::nn::Module& network) {
  if (options.optimizer == "adam") {
    return std::make_unique<torch::optim::Adam>(
        network.parameters(),
        torch::optim::AdamOptions(*options.learning_rate).weight_decay(*options.weight_decay));
  }
  const double decay = decays_before_momentum(options) ? 0 : *options.weight_decay;
  return std::make_unique<torch::optim::SGD>(network.parameters(),
                                             torch::optim::SGDOptions(*options.learning_rate)
                                                 .momentum(options.momentum)
                                                 .weight_decay(decay));
}

inline void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace thinreduce::train
