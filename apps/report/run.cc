#include "apps/report/run.h"

#include <fmt/format.h>

#include <cmath>

#include "apps/report/json_file.h"
#include "apps/report/plan_section.h"
#include "apps/terminal.h"
#include "thinreduce/error.h"

namespace thinreduce::apps {
namespace {

constexpr int kFormat = 1;

RunConfig read_config(const std::filesystem::path& file) {
  const JsonObject json = read_object(file);
  json.require_format(kFormat);
  json.require("method");
  RunConfig config{.method = json.text("method"),
                   .method_name = json.text("method_name"),
                   .data = json.text("data"),
                   .model = json.text("model"),
                   .transport = json.text("transport"),
                   .link = json.text("link"),
                   .optimizer = json.text("optimizer"),
                   .schedule = json.text("schedule"),
                   .simd = json.text("simd"),
                   .started = json.text("started"),
                   .version = json.text("version"),
                   .judged_by_loss = json.text("metric") == "loss",
                   .parameters = json.number("parameters"),
                   .ranks = json.number("ranks"),
                   .batch = json.number("batch"),
                   .epochs = json.number("epochs"),
                   .steps = json.number("steps"),
                   .learning_rate = json.number("learning_rate"),
                   .seed = json.number("seed"),
                   .cores = json.number("cores")};
  if (config.method_name.empty())
    config.method_name = config.method.substr(0, config.method.find(':'));
  return config;
}

RunStep read_step(const JsonObject& json) {
  json.require("step");
  const JsonObject stages = json.object("stages");
  return {.step = json.number("step"),
          .loss = json.number("loss"),
          .seconds = json.number("seconds"),
          .step_seconds = json.number("step_seconds"),
          .compute = json.number("compute_seconds"),
          .exposed = json.number("exposed_seconds"),
          .encode = stages.number("encode"),
          .wire = stages.number("wire"),
          .decode = stages.number("decode"),
          .wait = stages.number("wait"),
          .bytes_sent = json.number("bytes_sent"),
          .payload_bytes = json.number("payload_bytes"),
          .statistics = json.object("statistics").numbers()};
}

RunEvaluation read_evaluation(const JsonObject& json) {
  json.require("step");
  return {.step = json.number("step"),
          .seconds = json.number("seconds"),
          .bytes_sent = json.number("bytes_sent_total"),
          .accuracy = json.number("accuracy"),
          .loss = json.number("loss")};
}

// Computes the figures of the summary from the completed steps.
void sum_up(RunRecord& run) {
  run.steps_done = static_cast<double>(run.steps.size());
  if (!run.evaluations.empty()) {
    run.accuracy = run.evaluations.back().accuracy;
    run.loss = run.evaluations.back().loss;
  }
  if (run.steps.empty()) return;
  run.seconds = run.steps.back().seconds;
  run.bytes_sent = 0;
  double payload = 0;
  std::vector<double> times;
  for (const RunStep& step : run.steps) {
    if (!std::isnan(step.step_seconds)) times.push_back(step.step_seconds);
    run.bytes_sent += step.bytes_sent;
    payload += step.payload_bytes;
  }
  if (!times.empty()) run.step_seconds = median(times);
  if (payload > 0) run.ratio = run.steps_done * run.config.parameters * sizeof(float) / payload;
}

void take_number(const JsonObject& json, const char* key, double& value) {
  if (json.find(key) != nullptr) value = json.number(key);
}

}  // namespace

RunRecord read_run(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) {
    throw Error(ErrorCode::unavailable,
                fmt::format("'{}' is not a folder; give folders that `thinreduce train` wrote",
                            folder.string()));
  }
  if (!std::filesystem::exists(folder / "config.json")) {
    throw Error(ErrorCode::unavailable,
                fmt::format("'{}' is not a run folder: it has no config.json; give folders that "
                            "`thinreduce train` wrote",
                            folder.string()));
  }
  RunRecord run;
  run.folder = folder;
  run.config = read_config(folder / "config.json");
  // A run that was killed early may lack some files.
  if (const auto file = folder / "steps.jsonl"; std::filesystem::exists(file)) {
    read_lines(file, [&](const JsonObject& json) { run.steps.push_back(read_step(json)); });
  }
  if (const auto file = folder / "evaluations.jsonl"; std::filesystem::exists(file)) {
    read_lines(file,
               [&](const JsonObject& json) { run.evaluations.push_back(read_evaluation(json)); });
  }
  sum_up(run);
  if (!std::filesystem::exists(folder / "summary.json")) {
    run.status = "incomplete";
    return run;
  }
  const JsonObject summary = read_object(folder / "summary.json");
  summary.require_format(kFormat);
  summary.require("status");
  run.status = summary.text("status");
  take_number(summary, "accuracy", run.accuracy);
  take_number(summary, "loss", run.loss);
  take_number(summary, "seconds", run.seconds);
  take_number(summary, "steps", run.steps_done);
  // A step always takes time; 0 means that the summary was written without any step.
  if (summary.number("step_seconds") > 0) take_number(summary, "step_seconds", run.step_seconds);
  take_number(summary, "bytes_sent_total", run.bytes_sent);
  take_number(summary, "ratio", run.ratio);
  if (const auto* identical = summary.find("identical"); identical != nullptr) {
    if (!identical->is_boolean()) summary.fail("\"identical\" must be true or false");
    run.identical = identical->get<bool>();
  }
  if (summary.find("plan") != nullptr) run.plan = read_plan(summary.object("plan"));
  return run;
}

}  // namespace thinreduce::apps
