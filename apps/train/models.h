// The networks by name. Initial parameters depend on the seed alone. Their linear,
// convolution and embedding layers can be watched (watched_layers.h).
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace thinreduce::train {

class Network : public torch::nn::Module {
 public:
  // Returns ten scores per image, or a score per character of the alphabet and position.
  virtual torch::Tensor forward(torch::Tensor inputs) = 0;
};

// Thread-safe: ranks that are threads build their replicas at the same time.
[[nodiscard]] std::shared_ptr<Network> make_network(const std::string& model, std::uint64_t seed);

}  // namespace thinreduce::train
