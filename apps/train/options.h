// All settings of a training run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/launch.h"
#include "apps/train/dataset.h"
#include "thinreduce/engine/local_steps.h"

namespace thinreduce::train {

using Json = nlohmann::ordered_json;

// Without --checkpoint-every, a crash in a long epoch loses at most about this much work.
inline constexpr double kCheckpointSeconds = 300;

// Settings that are empty by default get their values from settle().
struct TrainOptions {
  // Settings that decide the result; config.json saves them for a resumed run.
  std::string method = "fp32";
  std::string data = "mnist";
  std::string model = "lenet";
  double epochs = 1;
  std::optional<std::uint64_t> steps;  // none: from epochs
  std::optional<std::size_t> batch;    // samples per rank; none: the model's default
  std::uint64_t seed = 1;
  std::string optimizer;                // sgd, adam, adamw; empty: the model's default
  std::optional<double> learning_rate;  // peak; none: the default of the model and the optimizer
  double momentum = 0.9;
  std::optional<double> weight_decay;     // none: the model's default
  std::optional<double> label_smoothing;  // none: the model's default
  std::string schedule = "onecycle";
  std::string augment = "auto";  // on, off; auto: on for cifar10
  std::size_t bucket_floats = 1'048'576;
  std::size_t min_elements = 1024;
  std::uint64_t warmup_steps = 0;
  std::uint64_t local_steps = 0;  // per round; 0: gradients are exchanged in every step
  std::string outer = "nesterov,lr=0.7,momentum=0.9";  // with local steps, as the next two
  std::size_t fragments = 1;
  std::uint64_t overlap = 0;
  std::uint64_t local_start = 0;  // steps before the first round; gradients are exchanged in each
  std::string start_method = "dqsg:levels=15";  // of these gradients
  // None: ten times per run, or once per epoch if that is more.
  std::optional<std::uint64_t> evaluate_every;
  // None: 2000 images, or 400 windows of text.
  std::optional<std::size_t> evaluate_samples;
  std::uint64_t check_every = 50;
  std::optional<int> threads;  // per rank; none: all cores for a single rank, otherwise 1

  // Settings of this process, which a resumed run may change.
  std::filesystem::path out;  // empty: runs/<data>-<model>-<method>-<n>
  bool overwrite = false;
  std::filesystem::path resume;             // run folder whose config.json gave the settings above
  std::optional<std::uint64_t> stop_after;  // step after which to stop
  // Steps between checkpoints; none: at the end of each epoch, and kCheckpointSeconds after the
  // last.
  std::optional<std::uint64_t> checkpoint_every;
  std::filesystem::path save_gradients;
  std::uint64_t save_every = 10;
  bool record_only = false;        // no run folder and no evaluations
  std::filesystem::path data_dir;  // empty: the user's cache
  bool json = false;
  bool elastic = false;       // ranks may die, leave and join
  std::string guard = "off";  // report, clip, refuse
  double guard_factor = 10;
  apps::LaunchOptions launch;
  std::function<bool()> interrupted = [] { return false; };
};

// Returns the settings of local steps, which there must be.
[[nodiscard]] LocalStepsOptions local_steps_of(const TrainOptions& options);

// Throws Error{bad_spec} or Error{bad_input} for a method, model or schedule that does not exist,
// and for a model with the data set of another.
void check(const TrainOptions& options);

// Replaces defaults that depend on the model, the data and the world by their values. Throws
// Error{bad_spec} or Error{bad_input} for settings that can't work.
void settle(TrainOptions& options, int ranks, std::size_t training_samples);

// Returns the number of images, or of windows of the model's context, in a training set.
[[nodiscard]] std::size_t training_samples(const TrainOptions& options, const Dataset& data);

// Returns the number of steps after which a run ends or stops.
[[nodiscard]] std::uint64_t steps_to_do(const TrainOptions& options);

// Convert the settings to the JSON of config.json, and back. `from_json` throws Error{bad_input},
// in which `what` names the file.
[[nodiscard]] Json to_json(const TrainOptions& options);
void from_json(const nlohmann::json& json, const std::string& what, TrainOptions& options);

}  // namespace thinreduce::train
