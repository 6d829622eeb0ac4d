#include "apps/train/gpt.h"

#include <cmath>
#include <limits>

#include "apps/train/watched_layers.h"

namespace thinreduce::train {
namespace {

namespace nn = torch::nn;

nn::LayerNorm layer_norm(std::int64_t width) {
  return nn::LayerNorm(nn::LayerNormOptions({width}));
}

// Attention to earlier characters and two linear layers, each after layer norm and with a shortcut.
class GptLayerImpl final : public nn::Module {
 public:
  explicit GptLayerImpl(const GptOptions& options)
      : heads_(options.heads),
        norm1_(layer_norm(options.width)),
        qkv_(options.width, 3 * options.width),
        joined_(options.width, options.width),
        norm2_(layer_norm(options.width)),
        fc1_(options.width, 4 * options.width),
        fc2_(4 * options.width, options.width),
        later_(torch::ones({options.context, options.context}, torch::kBool).triu(1)) {
    register_module("norm1", norm1_);
    register_module("qkv", qkv_);
    register_module("joined", joined_);
    register_module("norm2", norm2_);
    register_module("fc1", fc1_);
    register_module("fc2", fc2_);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = x + attend(norm1_(x));
    return y + fc2_(torch::gelu(fc1_(norm2_(y))));
  }

 private:
  [[nodiscard]] torch::Tensor attend(const torch::Tensor& x) {
    const auto batch = x.size(0), context = x.size(1), width = x.size(2);
    // (3, batch, heads, context, width / heads)
    const auto parts =
        qkv_(x).view({batch, context, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
    const double scale = 1 / std::sqrt(static_cast<double>(width / heads_));
    const auto scores = torch::matmul(parts[0] * scale, parts[1].transpose(-2, -1))
                            .masked_fill(later_, -std::numeric_limits<float>::infinity());
    const auto seen = torch::matmul(scores.softmax(-1), parts[2]);
    return joined_(seen.transpose(1, 2).reshape({batch, context, width}));
  }

  std::int64_t heads_;
  nn::LayerNorm norm1_;
  Linear qkv_;
  Linear joined_;
  nn::LayerNorm norm2_;
  Linear fc1_;
  Linear fc2_;
  torch::Tensor later_;  // true where a character would see a later one
};
TORCH_MODULE(GptLayer);

class Gpt final : public Network {
 public:
  explicit Gpt(const GptOptions& options)
      : tokens_(options.alphabet, options.width),
        places_(options.context, options.width),
        norm_(layer_norm(options.width)),
        head_(nn::LinearOptions(options.width, options.alphabet).bias(false)) {
    for (std::int64_t i = 0; i < options.layers; ++i) layers_->push_back(GptLayer(options));
    register_module("tokens", tokens_);
    register_module("places", places_);
    register_module("layers", layers_);
    register_module("norm", norm_);
    register_module("head", head_);
    initialise(options.layers);
  }
  torch::Tensor forward(torch::Tensor windows) override {
    // Every sample looks its places up itself, so that each has a gradient of its own.
    const auto places = torch::arange(windows.size(1)).expand_as(windows);
    return head_(norm_(layers_->forward(tokens_(windows) + places_(places))));
  }

 private:
  // As in GPT-2. Two branches per layer add to the shortcut; their last weights are smaller, so
  // that its variance does not grow with the number of layers.
  void initialise(std::int64_t layers) {
    constexpr double kDeviation = 0.02;
    const double branch = kDeviation / std::sqrt(2.0 * static_cast<double>(layers));
    const torch::NoGradGuard no_gradients;
    for (auto& item : named_parameters()) {
      const std::string& name = item.key();
      if (name.ends_with(".bias")) item.value().zero_();
      if (item.value().dim() < 2) continue;
      const bool last = name.ends_with("joined.weight") || name.ends_with("fc2.weight");
      item.value().normal_(0, last ? branch : kDeviation);
    }
  }

  Embedding tokens_;
  Embedding places_;
  nn::Sequential layers_;
  nn::LayerNorm norm_;
  Linear head_;
};

}  // namespace

std::shared_ptr<Network> make_gpt(const GptOptions& options) {
  return std::make_shared<Gpt>(options);
}

}  // namespace thinreduce::train
