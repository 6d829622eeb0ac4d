// What there is to know about a model without torch: its data and the settings that suit it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace thinreduce::train {

struct ModelInfo {
  std::string name;
  std::string data;
  std::size_t parameters = 0;
  std::size_t side = 0;      // of the images it takes
  std::size_t padding = 0;   // around the image before a random crop
  double learning_rate = 0;  // for SGD with momentum, at 128 images a step
  double weight_decay = 0;
};

[[nodiscard]] const std::vector<ModelInfo>& models();
// Throws Error{bad_input} that says what exists.
[[nodiscard]] const ModelInfo& find_model(const std::string& name);

}  // namespace thinreduce::train
