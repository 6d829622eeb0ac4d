// The optimizers of libtorch by name.
#pragma once

#include <torch/torch.h>

#include <map>
#include <memory>
#include <vector>

#include "apps/train/model_info.h"
#include "apps/train/options.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::train {

// Returns whether the gradients must contain weight decay before they are reduced: the method then
// applies momentum, and what the optimizer adds afterwards would lack the factor 1 / (1 -
// momentum). Signs have no such factor, and would lose the size of the decay.
inline bool decays_before_momentum(const TrainOptions& options) {
  const auto update = Spec::parse(options.method).update();
  return update && !update->signs;
}

// Returns the weight decay of a parameter: that of biases and normalisation depends on the model.
inline double weight_decay_of(const TrainOptions& options, const torch::Tensor& parameter) {
  const bool decays = parameter.dim() > 1 || find_model(options.model).decays_vectors;
  return decays ? *options.weight_decay : 0;
}

// Returns an optimizer with one group of parameters per weight decay. `Options` are those of the
// optimizer, without weight decay.
template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> make_grouped(const TrainOptions& options,
                                                      torch::nn::Module& network,
                                                      const Options& common) {
  std::map<double, std::vector<torch::Tensor>> by_decay;
  for (const auto& parameter : network.parameters()) {
    const double decay = decays_before_momentum(options) ? 0 : weight_decay_of(options, parameter);
    by_decay[decay].push_back(parameter);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& [decay, parameters] : by_decay) {
    auto own = std::make_unique<Options>(common);
    own->weight_decay(decay);
    groups.emplace_back(parameters, std::move(own));
  }
  return std::make_unique<Optimizer>(groups, common);
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainOptions& options,
                                                               torch::nn::Module& network) {
  using namespace torch::optim;
  const double rate = *options.learning_rate;
  if (options.optimizer == "adam") return make_grouped<Adam>(options, network, AdamOptions(rate));
  if (options.optimizer == "adamw") {
    return make_grouped<AdamW>(options, network, AdamWOptions(rate));
  }
  return make_grouped<SGD>(options, network, SGDOptions(rate).momentum(options.momentum));
}

inline void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace thinreduce::train
