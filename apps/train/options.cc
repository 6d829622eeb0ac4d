#include "apps/train/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "apps/files.h"
#include "apps/train/model_info.h"
#include "apps/train/schedule.h"
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

}  // namespace

void check(const TrainOptions& options) {
  const Spec spec = Spec::parse(options.method);
  if (spec.momentum_inside() && options.optimizer == "adam") {
    throw Error(ErrorCode::bad_input,
                fmt::format("{} applies momentum itself, and so does adam; use --optimizer sgd or "
                            "--method {}:momentum=0",
                            spec.info->name, spec.info->name));
  }
  (void)Schedule{.kind = options.schedule}.at(0);
  const ModelInfo& model = find_model(options.model);
  if (model.data != options.data) {
    throw Error(ErrorCode::bad_input,
                fmt::format("model {} needs the images of {}, not of {}; use --data {} or another "
                            "--model",
                            model.name, model.data, options.data, model.data));
  }
}

void settle(TrainOptions& options, int ranks, std::size_t training_images) {
  check(options);
  const Spec spec = Spec::parse(options.method);
  options.method = spec.full_text();
  const ModelInfo& model = find_model(options.model);
  const std::size_t per_epoch = training_images / (options.batch * static_cast<std::size_t>(ranks));
  if (per_epoch == 0) {
    throw Error(
        ErrorCode::bad_input,
        fmt::format("{} ranks with batches of {} need {} images per step, but {} has only {} "
                    "images; use a smaller --batch or fewer --ranks",
                    ranks, options.batch, options.batch * static_cast<std::size_t>(ranks),
                    options.data, training_images));
  }
  if (!options.steps) {
    options.steps = static_cast<std::uint64_t>(
        std::max(1.0, std::round(options.epochs * static_cast<double>(per_epoch))));
  }
  options.epochs = static_cast<double>(*options.steps) / static_cast<double>(per_epoch);
  const bool adam = options.optimizer == "adam";
  if (!options.learning_rate) options.learning_rate = adam ? 1e-3 : model.learning_rate;
  if (!options.weight_decay) options.weight_decay = model.weight_decay;
  if (adam) options.momentum = 0;
  if (spec.momentum_inside()) options.momentum = 0;
  if (options.augment == "auto") options.augment = options.data == "cifar10" ? "on" : "off";
  if (!options.evaluate_every) {
    options.evaluate_every = std::min<std::uint64_t>(per_epoch, (*options.steps + 9) / 10);
  }
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  if (!options.threads) options.threads = ranks > 1 ? 1 : cores;
}

Json to_json(const TrainOptions& options) {
  return {{"method", options.method},
          {"data", options.data},
          {"model", options.model},
          {"batch", options.batch},
          {"epochs", options.epochs},
          {"steps", options.steps.value()},
          {"optimizer", options.optimizer},
          {"learning_rate", options.learning_rate.value()},
          {"momentum", options.momentum},
          {"weight_decay", options.weight_decay.value()},
          {"schedule", options.schedule},
          {"seed", options.seed},
          {"augment", options.augment == "on"},
          {"bucket_floats", options.bucket_floats},
          {"min_elements", options.min_elements},
          {"warmup_steps", options.warmup_steps},
          {"evaluate_every", options.evaluate_every.value()},
          {"evaluate_samples", options.evaluate_samples},
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
    read("schedule", options.schedule);
    read("seed", options.seed);
    options.augment = json.at("augment").get<bool>() ? "on" : "off";
    read("bucket_floats", options.bucket_floats);
    read("min_elements", options.min_elements);
    read("warmup_steps", options.warmup_steps);
    read("evaluate_every", options.evaluate_every);
    read("evaluate_samples", options.evaluate_samples);
    read("check_every", options.check_every);
    read("threads", options.threads);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::bad_input, fmt::format("{}: {}", what, apps::plain_text(error)));
  }
  for (const char* key : {"batch", "steps", "evaluate_every", "check_every", "threads"}) {
    if (const auto& value = json.at(key); value < 1) {
      throw Error(ErrorCode::bad_input,
                  fmt::format("{}: \"{}\" is {}, must be 1 or more", what, key, value.dump()));
    }
  }
}

}  // namespace thinreduce::train
