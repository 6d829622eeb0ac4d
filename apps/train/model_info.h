// The models' names, data sets and default settings, without libtorch.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace thinreduce::train {

struct ModelInfo {
  std::string name;
  std::string data;
  std::size_t parameters = 0;
  std::size_t side = 0;      // height and width of its input
  std::size_t padding = 0;   // width of the zero border added before a random crop
  double learning_rate = 0;  // for SGD with momentum, at 128 images per step
  double weight_decay = 0;
};

[[nodiscard]] const std::vector<ModelInfo>& models();
// Throws Error{bad_input} that lists the models.
[[nodiscard]] const ModelInfo& find_model(const std::string& name);

}  // namespace thinreduce::train
