#include "apps/train/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "apps/files.h"
#include "apps/train/model_info.h"
#include "apps/train/sample_order.h"
#include "apps/train/schedule.h"
#include "apps/train/text_batches.h"
#include "thinreduce/engine/registered_bucket.h"
#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::train {
namespace {

template <typename T>
void read_value(const nlohmann::json& json, T& value) {
  value = json.get<T>();
}
template <typename T>
void read_value(const nlohmann::json& json, std::optional<T>& value) {
  value = json.get<T>();
}

// Returns the optimizer that the options name, or the model's.
std::string optimizer_of(const TrainOptions& options) {
  return options.optimizer.empty() ? find_model(options.model).optimizer : options.optimizer;
}

double default_learning_rate(const ModelInfo& model, const std::string& optimizer) {
  if (optimizer == model.optimizer) return model.learning_rate;
  return optimizer == "sgd" ? 0.1 : 1e-3;
}

// A residual would be left behind when the local steps begin, and so would momentum.
void check_start_method(const TrainOptions& options) {
  const Spec spec = Spec::parse(options.start_method);
  const RegisteredBucket bucket({.elements = 1, .tensors = {}}, spec, 0);
  if (spec.is_auto()) {
    throw Error(ErrorCode::bad_input,
                "--start-method auto may choose a method with a residual, which would be lost when "
                "the local steps begin; use fp32, bf16 or a quantizer such as dqsg:levels=15");
  }
  if (!bucket.keeps && !spec.update()) return;
  throw Error(
      ErrorCode::bad_input,
      fmt::format("--start-method {} keeps a part of the gradient for later, and would lose "
                  "it when the local steps begin; use fp32, bf16 or a quantizer such as "
                  "dqsg:levels=15",
                  options.start_method));
}

void check_local_steps(const TrainOptions& options, const Spec& spec) {
  if (options.local_steps == 0) {
    const TrainOptions defaults;
    const auto require_default = [](bool is_default, const char* option) {
      if (is_default) return;
      throw Error(ErrorCode::bad_input, fmt::format("{} needs --local-steps N: add it, or leave "
                                                    "out {}",
                                                    option, option));
    };
    require_default(options.fragments == defaults.fragments, "--fragments");
    require_default(options.overlap == defaults.overlap, "--overlap");
    require_default(options.outer == defaults.outer, "--outer");
    if (options.start_method != defaults.start_method) {
      throw Error(ErrorCode::bad_input,
                  "--start-method needs --local-steps N and --local-start STEPS: add both, or "
                  "leave out --start-method");
    }
    require_default(options.local_start == defaults.local_start, "--local-start");
    return;
  }
  if (options.local_start > 0) {
    check_start_method(options);
  } else if (options.start_method != TrainOptions{}.start_method) {
    throw Error(ErrorCode::bad_input,
                "--start-method needs --local-start STEPS: add it, or leave out --start-method");
  }
  static_cast<void>(local_steps_of(options).settings());
  if (const auto update = spec.update()) {
    throw Error(ErrorCode::bad_input,
                fmt::format("{} applies momentum itself; with --local-steps use {}:{} and the "
                            "momentum of --outer",
                            spec.info->name, spec.info->name, update->without));
  }
}

}  // namespace

LocalStepsOptions local_steps_of(const TrainOptions& options) {
  return {.every = options.local_steps,
          .outer = options.outer,
          .fragments = options.fragments,
          .overlap = options.overlap};
}

void check(const TrainOptions& options) {
  const Spec spec = Spec::parse(options.method);
  check_local_steps(options, spec);
  const std::string optimizer = optimizer_of(options);
  if (const auto update = spec.update(); update && optimizer != "sgd") {
    throw Error(ErrorCode::bad_input,
                fmt::format("{} applies momentum itself, and so does {}; use --optimizer sgd or "
                            "--method {}:{}",
                            spec.info->name, optimizer, spec.info->name, update->without));
  }
  (void)Schedule{.kind = options.schedule}.at(0);
  const ModelInfo& model = find_model(options.model);
  if (model.data != options.data) {
    throw Error(ErrorCode::bad_input,
                fmt::format("model {} needs the data set {}, not {}; use --data {} or another "
                            "--model",
                            model.name, model.data, options.data, model.data));
  }
  // A run of an older version may have saved the option, which had no effect.
  if (options.resume.empty() && model.is_language_model() && options.augment == "on") {
    throw Error(
        ErrorCode::bad_input,
        fmt::format("model {} reads text, which --augment can't change: leave it out", model.name));
  }
}

std::size_t training_samples(const TrainOptions& options, const Dataset& data) {
  const ModelInfo& model = find_model(options.model);
  if (!model.is_language_model()) return data.train.count;
  return count_windows(data.text.train.size(), model.side);
}

void settle(TrainOptions& options, int ranks, std::size_t training_samples) {
  check(options);
  const Spec spec = Spec::parse(options.method);
  options.method = spec.full_text();
  const ModelInfo& model = find_model(options.model);
  if (!options.batch) options.batch = model.batch;
  const std::size_t per_epoch =
      steps_per_epoch({.batch = *options.batch, .ranks = ranks}, training_samples, options.data);
  if (!options.steps) {
    options.steps = static_cast<std::uint64_t>(
        std::max(1.0, std::round(options.epochs * static_cast<double>(per_epoch))));
  }
  options.epochs = static_cast<double>(*options.steps) / static_cast<double>(per_epoch);
  options.optimizer = optimizer_of(options);
  if (!options.learning_rate) {
    options.learning_rate = default_learning_rate(model, options.optimizer);
  }
  if (!options.weight_decay) options.weight_decay = model.weight_decay;
  if (!options.label_smoothing) options.label_smoothing = model.label_smoothing;
  if (!options.evaluate_samples) options.evaluate_samples = model.is_language_model() ? 400 : 2000;
  if (options.optimizer != "sgd") options.momentum = 0;
  if (spec.update()) options.momentum = 0;
  if (options.augment == "auto") options.augment = options.data == "cifar10" ? "on" : "off";
  if (!options.evaluate_every) {
    options.evaluate_every = std::min<std::uint64_t>(per_epoch, (*options.steps + 9) / 10);
  }
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  if (!options.threads) options.threads = ranks > 1 ? 1 : cores;
}

std::uint64_t steps_to_do(const TrainOptions& options) {
  return std::min(*options.steps, options.stop_after.value_or(*options.steps));
}

Json to_json(const TrainOptions& options) {
  return {{"method", options.method},
          {"data", options.data},
          {"model", options.model},
          {"batch", options.batch.value()},
          {"epochs", options.epochs},
          {"steps", options.steps.value()},
          {"optimizer", options.optimizer},
          {"learning_rate", options.learning_rate.value()},
          {"momentum", options.momentum},
          {"weight_decay", options.weight_decay.value()},
          {"label_smoothing", options.label_smoothing.value()},
          {"schedule", options.schedule},
          {"seed", options.seed},
          {"augment", options.augment == "on"},
          {"bucket_floats", options.bucket_floats},
          {"min_elements", options.min_elements},
          {"warmup_steps", options.warmup_steps},
          {"local_steps", options.local_steps},
          {"outer", options.outer},
          {"fragments", options.fragments},
          {"overlap", options.overlap},
          {"local_start", options.local_start},
          {"start_method", options.start_method},
          {"evaluate_every", options.evaluate_every.value()},
          {"evaluate_samples", options.evaluate_samples.value()},
          {"check_every", options.check_every},
          {"threads", options.threads.value()}};
}

void from_json(const nlohmann::json& json, const std::string& what, TrainOptions& options) {
  const auto read = [&](const char* key, auto& value) { read_value(json.at(key), value); };
  try {
    read("method", options.method);
    read("data", options.data);
    read("model", options.model);
    read("batch", options.batch);
    read("epochs", options.epochs);
    read("steps", options.steps);
    read("optimizer", options.optimizer);
    read("learning_rate", options.learning_rate);
    read("momentum", options.momentum);
    read("weight_decay", options.weight_decay);
    // Runs of older versions have none.
    options.label_smoothing = json.value("label_smoothing", 0.0);
    read("schedule", options.schedule);
    read("seed", options.seed);
    options.augment = json.at("augment").get<bool>() ? "on" : "off";
    read("bucket_floats", options.bucket_floats);
    read("min_elements", options.min_elements);
    read("warmup_steps", options.warmup_steps);
    options.local_steps = json.value("local_steps", std::uint64_t{0});
    options.outer = json.value("outer", options.outer);
    options.fragments = json.value("fragments", std::size_t{1});
    options.overlap = json.value("overlap", std::uint64_t{0});
    options.local_start = json.value("local_start", std::uint64_t{0});
    options.start_method = json.value("start_method", options.start_method);
    read("evaluate_every", options.evaluate_every);
    read("evaluate_samples", options.evaluate_samples);
    read("check_every", options.check_every);
    read("threads", options.threads);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::bad_state,
                fmt::format("{}: {}; the file is damaged, or not written by `thinreduce train`",
                            what, apps::plain_text(error)));
  }
  for (const char* key : {"batch", "steps", "evaluate_every", "check_every", "threads"}) {
    if (const auto& value = json.at(key); value < 1) {
      throw Error(ErrorCode::bad_state,
                  fmt::format("{}: \"{}\" is {}, must be 1 or more; the file is damaged", what, key,
                              value.dump()));
    }
  }
}

}  // namespace thinreduce::train
