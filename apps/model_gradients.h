// Gradients of one of the trainer's models, for `thinreduce plan --model`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace thinreduce::apps {

// Returns the path of the trainer, which is a program of its own beside this one.
[[nodiscard]] std::string trainer_path();

struct ModelGradientsOptions {
  std::string model;
  int ranks = 1;
  std::filesystem::path data_dir;  // empty: the trainer's default
};

// Starts the trainer, which computes the first steps of a training and records the gradients of all
// ranks. They are in a temporary folder, which is deleted with this object.
class ModelGradients {
 public:
  // More ranks would take long to compute, and much space.
  static constexpr int kMaxRanks = 16;
  // `auto` takes its sample of the second step.
  static constexpr int kSteps = 2;

  // Throws Error{unavailable} that says what to do. The trainer prints why it failed.
  explicit ModelGradients(const ModelGradientsOptions& options);
  ~ModelGradients();
  ModelGradients(const ModelGradients&) = delete;
  ModelGradients& operator=(const ModelGradients&) = delete;

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

}  // namespace thinreduce::apps
