// The networks, by name. Parameters depend on the seed only. Their linear and convolution layers
// can be watched.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace thinreduce::train {

class Network : public torch::nn::Module {
 public:
  // Images in, ten scores an image out.
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

// Thread-safe: ranks that are threads build their replicas at the same time.
[[nodiscard]] std::shared_ptr<Network> make_network(const std::string& model, std::uint64_t seed);

}  // namespace thinreduce::train
