// Every setting of a training run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/launch.h"

namespace thinreduce::train {

using Json = nlohmann::ordered_json;

struct TrainOptions {
  // What is computed; saved in config.json, so that a resumed run has the same.
  std::string method = "fp32";
  std::string data = "mnist";
  std::string model = "lenet";
  double epochs = 1;
  std::uint64_t steps = 0;  // 0: as many as the epochs have
  std::size_t batch = 32;   // a rank
  std::uint64_t seed = 1;
  std::string optimizer = "sgd";
  double learning_rate = 0;  // 0: what suits the model and the optimizer
  double momentum = 0.9;
  double weight_decay = -1;  // below 0: what suits the model
  std::string schedule = "onecycle";
  std::string augment = "auto";  // on, off; auto: on for cifar10
  std::size_t bucket_floats = 1'048'576;
  std::size_t min_elements = 1024;
  std::uint64_t warmup_steps = 0;
  std::uint64_t evaluate_every = 0;  // 0: ten times, or every epoch when there are more
  std::size_t evaluate_samples = 2000;
  std::uint64_t check_every = 50;
  int threads = 0;  // of a rank; 0: all cores for a single rank, otherwise 1

  // How this run goes about it.
  std::filesystem::path out;  // empty: runs/<data>-<model>-<method>-<n>
  bool overwrite = false;
  std::filesystem::path resume;  // a run folder; its config.json gave what is above
  std::uint64_t stop_after = 0;  // interrupt after this step; 0: never
  std::filesystem::path save_gradients;
  std::uint64_t save_every = 10;
  std::filesystem::path data_dir;  // empty: the user's cache
  bool json = false;
  apps::LaunchOptions launch;
  std::function<bool()> interrupted = [] { return false; };
};

// Refuses a method, model or schedule that does not exist, and a model with other data than its
// own.
void check(const TrainOptions& options);

// Replaces "what suits" by values for a world of `ranks`, and refuses what can't work. Throws
// Error{bad_spec} or Error{bad_input}.
void settle(TrainOptions& options, int ranks, std::size_t training_images);

// The settings of config.json, and back. `from_json` throws Error{bad_input} naming `what`.
[[nodiscard]] Json to_json(const TrainOptions& options);
void from_json(const nlohmann::json& json, const std::string& what, TrainOptions& options);

}  // namespace thinreduce::train
