// Linear and convolution layers that can be watched: in backward, somebody gets to see what went in
// and the gradient of what came out.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <utility>

namespace thinreduce::train {

// Called on the thread of backward, before the layer's own gradients exist.
using Watcher = std::function<void(const torch::Tensor& input, const torch::Tensor& delta)>;

template <typename Layer>
class WatchedLayer : public Layer {
 public:
  using Layer::Layer;

  torch::Tensor forward(const torch::Tensor& input) {
    auto output = Layer::forward(input);
    if (watcher_ && output.requires_grad()) {
      output.register_hook([this, seen = input.detach()](const torch::Tensor& delta) {
        if (watcher_) watcher_(seen, delta);
      });
    }
    return output;
  }
  // Empty: nobody watches, at no cost.
  void watch(Watcher watcher) { watcher_ = std::move(watcher); }

 private:
  Watcher watcher_;
};

using LinearImpl = WatchedLayer<torch::nn::LinearImpl>;
using Conv2dImpl = WatchedLayer<torch::nn::Conv2dImpl>;
TORCH_MODULE(Linear);
TORCH_MODULE(Conv2d);

}  // namespace thinreduce::train
