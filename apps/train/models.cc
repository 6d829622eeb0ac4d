#include "apps/train/models.h"

#include <mutex>

#include "apps/train/gpt.h"
#include "apps/train/model_info.h"
#include "apps/train/watched_layers.h"

namespace thinreduce::train {
namespace {

namespace nn = torch::nn;

Conv2d conv(int in, int out, int kernel, int stride = 1) {
  return Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2));
}

// Without a bias, which the batch norm after it would cancel.
Conv2d conv3x3(int in, int out, int stride = 1) {
  return Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
}

// Two 5x5 convolutions and two linear layers: a wider LeNet-5.
class LeNet final : public Network {
 public:
  LeNet() {
    register_module("conv1", conv1_);
    register_module("conv2", conv2_);
    register_module("fc1", fc1_);
    register_module("fc2", fc2_);
  }
  torch::Tensor forward(torch::Tensor x) override {
    x = torch::max_pool2d(torch::relu(conv1_(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2_(x)), 2);
    return fc2_(torch::relu(fc1_(x.flatten(1))));
  }

 private:
  Conv2d conv1_ = conv(1, 32, 5);
  Conv2d conv2_ = conv(32, 64, 5);
  Linear fc1_{7 * 7 * 64, 512};
  Linear fc2_{512, 10};
};

class Fc300100 final : public Network {
 public:
  Fc300100() {
    register_module("fc1", fc1_);
    register_module("fc2", fc2_);
    register_module("fc3", fc3_);
  }
  torch::Tensor forward(torch::Tensor x) override {
    return fc3_(torch::relu(fc2_(torch::relu(fc1_(x.flatten(1))))));
  }

 private:
  Linear fc1_{28 * 28, 300};
  Linear fc2_{300, 100};
  Linear fc3_{100, 10};
};

// Two convolutions and three linear layers on crops of 24 x 24. The original's local response
// normalisation is left out: it has no parameters and changes little.
class CifarNet final : public Network {
 public:
  CifarNet() {
    register_module("conv1", conv1_);
    register_module("conv2", conv2_);
    register_module("fc1", fc1_);
    register_module("fc2", fc2_);
    register_module("fc3", fc3_);
  }
  torch::Tensor forward(torch::Tensor x) override {
    x = torch::max_pool2d(torch::relu(conv1_(x)), 3, 2, 1);
    x = torch::max_pool2d(torch::relu(conv2_(x)), 3, 2, 1);
    return fc3_(torch::relu(fc2_(torch::relu(fc1_(x.flatten(1))))));
  }

 private:
  Conv2d conv1_ = conv(3, 64, 5);
  Conv2d conv2_ = conv(64, 64, 5);
  Linear fc1_{6 * 6 * 64, 384};
  Linear fc2_{384, 192};
  Linear fc3_{192, 10};
};

// Three pairs of 3x3 convolutions with batch norm, then two linear layers.
class VggSmall final : public Network {
 public:
  VggSmall() {
    int in = 3;
    for (const int width : {32, 64, 128}) {
      for (int i = 0; i < 2; ++i) {
        features_->push_back(conv3x3(in, width));
        features_->push_back(nn::BatchNorm2d(width));
        features_->push_back(nn::ReLU());
        in = width;
      }
      features_->push_back(nn::MaxPool2d(2));
    }
    register_module("features", features_);
    register_module("fc1", fc1_);
    register_module("fc2", fc2_);
  }
  torch::Tensor forward(torch::Tensor x) override {
    return fc2_(torch::relu(fc1_(features_->forward(x).flatten(1))));
  }

 private:
  nn::Sequential features_;
  Linear fc1_{128 * 4 * 4, 512};
  Linear fc2_{512, 10};
};

// Two 3x3 convolutions and a shortcut without parameters. Where the block halves the image and
// doubles the channels, the shortcut takes every second pixel and pads the channels with zeros.
class BlockImpl final : public nn::Module {
 public:
  BlockImpl(int in, int out)
      : added_(out - in),
        conv1_(conv3x3(in, out, in == out ? 1 : 2)),
        norm1_(out),
        conv2_(conv3x3(out, out)),
        norm2_(out) {
    register_module("conv1", conv1_);
    register_module("norm1", norm1_);
    register_module("conv2", conv2_);
    register_module("norm2", norm2_);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = norm2_(conv2_(torch::relu(norm1_(conv1_(x)))));
    if (added_ == 0) return torch::relu(y + x);
    const auto half = x.slice(2, 0, torch::nullopt, 2).slice(3, 0, torch::nullopt, 2);
    const auto around = torch::constant_pad_nd(half, {0, 0, 0, 0, added_ / 2, added_ / 2});
    return torch::relu(y + around);
  }

 private:
  int added_;
  Conv2d conv1_;
  nn::BatchNorm2d norm1_;
  Conv2d conv2_;
  nn::BatchNorm2d norm2_;
};
TORCH_MODULE(Block);

// Residual network for small images: 6 * blocks + 2 layers.
class ResNet final : public Network {
 public:
  explicit ResNet(int blocks) {
    int in = 16;
    for (const int width : {16, 32, 64}) {
      for (int i = 0; i < blocks; ++i) {
        stages_->push_back(Block(in, width));
        in = width;
      }
    }
    register_module("conv1", conv1_);
    register_module("norm1", norm1_);
    register_module("stages", stages_);
    register_module("fc", fc_);
    for (auto& module : modules(/*include_self=*/false)) {
      if (auto* convolution = module->as<nn::Conv2d>()) {
        nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
      }
    }
  }
  torch::Tensor forward(torch::Tensor x) override {
    x = stages_->forward(torch::relu(norm1_(conv1_(x))));
    return fc_(x.mean({2, 3}));
  }

 private:
  Conv2d conv1_ = conv3x3(3, 16);
  nn::BatchNorm2d norm1_{16};
  nn::Sequential stages_;
  Linear fc_{64, 10};
};

// Convolution, optionally a pool that halves the image, batch norm, ReLU. The pool comes first,
// because then the other two have less to do.
class ConvNormImpl final : public nn::Module {
 public:
  ConvNormImpl(int in, int out, bool pool)
      : pool_(pool),
        conv_(conv3x3(in, out)),
        // A rank's batch is small, so the running statistics average over more of them.
        norm_(nn::BatchNorm2dOptions(out).momentum(0.05)) {
    register_module("conv", conv_);
    register_module("norm", norm_);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = conv_(x);
    if (pool_) x = torch::max_pool2d(x, 2);
    return norm_(x).relu_();
  }

 private:
  bool pool_;
  Conv2d conv_;
  nn::BatchNorm2d norm_;
};
TORCH_MODULE(ConvNorm);

// Residual network of nine layers, slim enough for ten epochs on two cores in a quarter of an hour.
class ResNet9 final : public Network {
 public:
  ResNet9() {
    register_module("stem", stem_);
    register_module("down1", down1_);
    register_module("block1", block1_);
    register_module("down2", down2_);
    register_module("down3", down3_);
    register_module("block3", block3_);
    register_module("fc", fc_);
  }
  torch::Tensor forward(torch::Tensor x) override {
    // The convolutions are a tenth faster in this order of memory, which their outputs keep.
    x = down1_(stem_(x.contiguous(torch::MemoryFormat::ChannelsLast)));
    x = x + block1_->forward(x);
    x = down3_(down2_(x));
    x = x + block3_->forward(x);
    // The largest of 16 features is far from 0, so that the scores would begin too large.
    return fc_(x.amax({2, 3})) / 8;
  }

 private:
  static nn::Sequential block(int width) {
    return nn::Sequential(ConvNorm(width, width, false), ConvNorm(width, width, false));
  }

  ConvNorm stem_{3, 16, false};
  ConvNorm down1_{16, 32, true};
  nn::Sequential block1_ = block(32);
  ConvNorm down2_{32, 64, true};
  ConvNorm down3_{64, 128, true};
  nn::Sequential block3_ = block(128);
  Linear fc_{128, 10};
};

std::shared_ptr<Network> build(const std::string& model) {
  if (model == "lenet") return std::make_shared<LeNet>();
  if (model == "fc-300-100") return std::make_shared<Fc300100>();
  if (model == "cifarnet") return std::make_shared<CifarNet>();
  if (model == "vgg-small") return std::make_shared<VggSmall>();
  if (model == "resnet9") return std::make_shared<ResNet9>();
  // The alphabet is that of the text, whose checksum is verified.
  if (model == "gpt") return make_gpt({.alphabet = 83, .context = 64});
  return std::make_shared<ResNet>(model == "resnet20" ? 3 : 5);
}

}  // namespace

std::shared_ptr<Network> make_network(const std::string& model, std::uint64_t seed) {
  (void)find_model(model);
  // libtorch initialises parameters from a generator that the whole process shares.
  static std::mutex generator;
  const std::lock_guard lock(generator);
  torch::manual_seed(seed);
  return build(model);
}

}  // namespace thinreduce::train
