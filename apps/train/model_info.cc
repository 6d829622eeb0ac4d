#include "apps/train/model_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "thinreduce/error.h"

namespace thinreduce::train {

const std::vector<ModelInfo>& models() {
  static const std::vector<ModelInfo> all{
      {.name = "lenet",
       .data = "mnist",
       .parameters = 1'663'370,
       .side = 28,
       .padding = 0,
       .learning_rate = 0.05,
       .weight_decay = 0},
      {.name = "fc-300-100",
       .data = "mnist",
       .parameters = 266'610,
       .side = 28,
       .padding = 0,
       .learning_rate = 0.1,
       .weight_decay = 0},
      {.name = "cifarnet",
       .data = "cifar10",
       .parameters = 1'068'298,
       .side = 24,
       .padding = 0,
       .learning_rate = 0.05,
       .weight_decay = 5e-4},
      {.name = "vgg-small",
       .data = "cifar10",
       .parameters = 1'341'674,
       .side = 32,
       .padding = 4,
       .learning_rate = 0.1,
       .weight_decay = 5e-4},
      {.name = "resnet20",
       .data = "cifar10",
       .parameters = 269'722,
       .side = 32,
       .padding = 4,
       .learning_rate = 0.1,
       .weight_decay = 1e-4},
      {.name = "resnet32",
       .data = "cifar10",
       .parameters = 464'154,
       .side = 32,
       .padding = 4,
       .learning_rate = 0.1,
       .weight_decay = 1e-4},
      {.name = "resnet9",
       .data = "cifar10",
       .parameters = 412'954,
       .side = 32,
       .padding = 4,
       .learning_rate = 0.2,
       .weight_decay = 5e-4,
       .decays_vectors = false,
       .label_smoothing = 0.1},
      {.name = "gpt",
       .data = "text",
       .parameters = 822'784,
       .side = 64,
       .padding = 0,
       .learning_rate = 2e-3,
       .weight_decay = 0.01,
       .decays_vectors = false,
       .batch = 12,
       .optimizer = "adamw"},
  };
  return all;
}

const ModelInfo& find_model(const std::string& name) {
  std::vector<std::string> names;
  for (const ModelInfo& model : models()) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  throw Error(ErrorCode::bad_input, fmt::format("there is no model '{}'; the models are: {}", name,
                                                fmt::join(names, ", ")));
}

}  // namespace thinreduce::train
