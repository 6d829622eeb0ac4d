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
  std::size_t side = 0;      // height and width of its input; the context of a language model
  std::size_t padding = 0;   // width of the zero border added before a random crop
  double learning_rate = 0;  // peak for its optimizer, at 4 ranks with its batch
  double weight_decay = 0;
  bool decays_vectors = true;  // whether weight decay includes biases and normalisation
  double label_smoothing = 0;
  std::size_t batch = 32;  // samples per rank
  std::string optimizer = "sgd";

  // A language model is judged by its loss, others by their accuracy.
  [[nodiscard]] bool is_language_model() const { return data == "text"; }
};

[[nodiscard]] const std::vector<ModelInfo>& models();
// Throws Error{bad_input} that lists the models.
[[nodiscard]] const ModelInfo& find_model(const std::string& name);

}  // namespace thinreduce::train
