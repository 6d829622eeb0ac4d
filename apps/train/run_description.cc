#include "apps/train/run_description.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <ctime>
#include <thread>

#include "apps/gradients.h"
#include "apps/train/model_info.h"
#include "thinreduce/kernels/target.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/version.h"

namespace thinreduce::train {
namespace {

bool is_language_model(const RunView& run) {
  return find_model(run.options.model).is_language_model();
}

}  // namespace

Json accuracy_to_json(double accuracy) {
  return accuracy < 0 ? Json(nullptr) : Json(accuracy);
}

Json run_config(const RunView& run) {
  const TrainOptions& options = run.options;
  Json json{{"format", kRunFormat},
            {"version", version()},
            {"method", options.method},
            {"method_name", Spec::parse(options.method).name()}};
  const Json settings = to_json(options);
  for (const auto& [key, value] : settings.items()) json[key] = value;
  json["parameters"] = run.replica.parameters();
  json["ranks"] = run.ranks;
  json["transport"] = options.launch.transport;
  json["link"] = options.launch.link.to_string();
  json["global_batch"] = *options.batch * static_cast<std::size_t>(run.ranks);
  json["metric"] = is_language_model(run) ? "loss" : "accuracy";
  json["steps_per_epoch"] = run.replica.steps_per_epoch();
  json["buckets"] = apps::layouts_to_json(run.replica.layouts());
  json["cores"] = std::thread::hardware_concurrency();
  json["simd"] = kernels::active_target();
  json["started"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  json["command"] = fmt::format("{}", fmt::join(options.launch.arguments, " "));
  return json;
}

Json run_summary(const RunView& run, const Checkpoint& state, double step_seconds,
                 const std::map<std::string, double>& statistics) {
  const TrainOptions& options = run.options;
  const bool interrupted = state.step < *options.steps;
  const double uncompressed = static_cast<double>(run.replica.parameters() * sizeof(float)) *
                              static_cast<double>(state.step);
  const auto samples = static_cast<double>(*options.batch) * run.ranks;
  const char* speed = is_language_model(run) ? "windows_per_second" : "images_per_second";
  return {{"format", kRunFormat},
          {"status", interrupted ? "interrupted" : "finished"},
          {"method", options.method},
          {"method_name", Spec::parse(options.method).name()},
          {"data", options.data},
          {"model", options.model},
          {"ranks", run.ranks},
          {"link", options.launch.link.to_string()},
          {"metric", is_language_model(run) ? "loss" : "accuracy"},
          {"accuracy", accuracy_to_json(state.accuracy)},
          {"best_accuracy", accuracy_to_json(state.best_accuracy)},
          {"loss", state.evaluated == 0 ? Json(nullptr) : Json(state.loss)},
          {"seconds", state.seconds},
          {"steps", state.step},
          {"local_steps", options.local_steps},
          {"local_start", options.local_start},
          {"bytes_sent_total", state.bytes_sent_total},
          {"ratio",
           state.payload_total > 0 ? uncompressed / static_cast<double>(state.payload_total) : 0.0},
          {"step_seconds", step_seconds},
          {speed, step_seconds > 0 ? samples / step_seconds : 0.0},
          {"statistics", statistics},
          {"identical", true},  // check_replicas would have thrown
          {"run", run.folder.string()}};
}

void announce_run(const RunView& run, const Checkpoint& state) {
  const TrainOptions& options = run.options;
  const int ranks = run.ranks;
  fmt::print(
      "{} on {}, {} parameters; {} rank{} x {} {} = {} per step; method {}; link {}; "
      "run folder {}\n",
      options.model, options.data, run.replica.parameters(), ranks, ranks == 1 ? "" : "s",
      *options.batch, is_language_model(run) ? "windows" : "images",
      *options.batch * static_cast<std::size_t>(ranks), options.method,
      options.launch.link.to_string(), run.folder.string());
  const auto update = Spec::parse(options.method).update();
  if (update && update->signs) {
    fmt::print("the method returns the signs of the mean: the optimizer's momentum is 0\n");
  } else if (update) {
    fmt::print(
        "the method applies momentum itself: the optimizer's is 0, and weight decay is added to "
        "the gradients\n");
  }
  if (options.local_steps > 0) {
    fmt::print("{} local steps per round, outer step {}, fragments {}, overlap {}\n",
               options.local_steps, options.outer, options.fragments, options.overlap);
  }
  if (options.local_start > 0) {
    fmt::print("gradients are exchanged with {} in the first {} steps\n", options.start_method,
               options.local_start);
  }
  if (state.step > 0) fmt::print("continuing after step {}\n", state.step);
  std::fflush(stdout);
}

}  // namespace thinreduce::train
