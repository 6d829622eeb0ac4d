#include "apps/train/run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "apps/files.h"
#include "apps/json_text.h"
#include "thinreduce/error.h"

namespace thinreduce::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSteps = "steps.jsonl";
constexpr const char* kEvaluations = "evaluations.jsonl";

void check_format(const nlohmann::json& json) {
  if (const auto format = json.at("format").get<double>(); !(format <= kRunFormat)) {
    throw Error(ErrorCode::bad_state,
                fmt::format("format {} was written by a newer thinreduce; this version reads up to "
                            "format {}",
                            format, kRunFormat));
  }
}

// Returns the error for a file of a run that can't be continued.
Error damaged(const fs::path& file, const std::string& why) {
  return {ErrorCode::bad_state,
          fmt::format("{} is damaged ({}); restore it, or start the run again with --out {} "
                      "--overwrite",
                      file.string(), why, file.parent_path().string())};
}

// Creates runs/mnist-lenet-topk-N with the first free N. Creating the folder decides between
// processes that choose the same N.
fs::path choose_folder(const TrainOptions& options) {
  const std::string method = options.method.substr(0, options.method.find(':'));
  std::error_code error;
  fs::create_directories("runs", error);
  for (int n = 1; !error; ++n) {
    fs::path path = fmt::format("runs/{}-{}-{}-{}", options.data, options.model, method, n);
    if (fs::create_directory(path, error)) return path;
  }
  throw Error(ErrorCode::unavailable,
              fmt::format("can't create a run folder in runs/: {}; choose another with --out",
                          error.message()));
}

constexpr std::array kFiles{"config.json", "summary.json", "checkpoint.json", kSteps, kEvaluations};

// A process that was killed while it wrote a file leaves it under this name.
constexpr std::string_view kPartial = ".partial";

void remove_run(const fs::path& path) {
  for (const char* file : kFiles) {
    fs::remove(path / file);
    fs::remove(path / (std::string(file) += kPartial));
  }
  remove_old_checkpoints(path, {});
}

// Throws if the folder holds anything that a run does not write: it may be somebody's folder.
void require_run_folder(const fs::path& path) {
  if (!fs::is_directory(path)) return;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    const std::string file =
        name.ends_with(kPartial) ? name.substr(0, name.size() - kPartial.size()) : name;
    if (file.starts_with("checkpoint-") || std::ranges::find(kFiles, file) != kFiles.end())
      continue;
    throw Error(ErrorCode::unavailable,
                fmt::format("{} is not a run folder: it holds {}; choose a new folder with --out",
                            path.string(), name));
  }
}

// Removes the lines of later steps and a last line that was cut.
void cut_lines(const fs::path& file, std::uint64_t step) {
  std::ifstream in(file);
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const auto json = apps::parse_json_or_discard(line);
    if (json.is_discarded() || !json.contains("step") || json["step"] > step) break;
    kept += line + "\n";
  }
  apps::write_text(file, kept);
}

}  // namespace

RunFolder::RunFolder(fs::path path) : path_(std::move(path)) {}

void RunFolder::check_unused(const TrainOptions& options) {
  if (!options.resume.empty() || options.out.empty()) return;
  if (!fs::exists(options.out / "config.json")) return require_run_folder(options.out);
  if (options.overwrite) return;
  throw Error(ErrorCode::unavailable,
              fmt::format("{0} already holds a run; continue it with --resume {0}, replace it "
                          "with --overwrite, or choose another --out",
                          options.out.string()));
}

RunFolder RunFolder::create(const TrainOptions& options, std::uint64_t bytes) {
  check_unused(options);
  RunFolder folder(options.out.empty() ? choose_folder(options) : options.out);
  apps::require_space(folder.path_, bytes);
  if (fs::exists(folder.path_ / "config.json")) remove_run(folder.path_);
  folder.open();
  return folder;
}

RunFolder RunFolder::resume(const fs::path& path) {
  RunFolder folder(path);
  apps::require_space(path, 1 << 20U);
  return folder;
}

void RunFolder::continue_after(std::uint64_t step) {
  cut_lines(path_ / kSteps, step);
  cut_lines(path_ / kEvaluations, step);
  fs::remove(path_ / "summary.json");
  open();
}

// Calls visit(line) for every step that is in the folder.
template <typename Visit>
void RunFolder::for_steps(const Visit& visit) const {
  std::ifstream in(path_ / kSteps);
  for (std::string line; std::getline(in, line);) {
    const auto json = apps::parse_json_or_discard(line);
    if (json.is_object()) visit(json);
  }
}

std::vector<double> RunFolder::step_seconds() const {
  std::vector<double> seconds;
  for_steps([&](const nlohmann::json& line) {
    if (!line.contains("step_seconds")) return;
    if (const auto& value = line["step_seconds"]; value.is_number()) seconds.push_back(value);
  });
  return seconds;
}

std::map<std::string, double> RunFolder::mean_statistics() const {
  std::map<std::string, double> means;
  std::map<std::string, double> counts;
  for_steps([&](const nlohmann::json& line) {
    if (!line.contains("statistics") || !line["statistics"].is_object()) return;
    for (const auto& [name, value] : line["statistics"].items()) {
      if (!value.is_number()) continue;
      means[name] += value.get<double>();
      counts[name] += 1;
    }
  });
  for (auto& [name, mean] : means) mean /= counts[name];
  return means;
}

void RunFolder::open() {
  steps_.open(path_ / kSteps, std::ios::app);
  evaluations_.open(path_ / kEvaluations, std::ios::app);
}

void RunFolder::write_config(const Json& config) const {
  apps::write_text(path_ / "config.json", config.dump(2) + "\n");
}

void RunFolder::add_step(const Json& line) {
  steps_ << line.dump() << '\n';
}

void RunFolder::add_evaluation(const Json& line) {
  evaluations_ << line.dump() << '\n';
}

void RunFolder::flush() {
  steps_.flush();
  evaluations_.flush();
  if (!steps_ || !evaluations_) {
    throw Error(ErrorCode::unavailable,
                fmt::format("can't write to {}; check for free disk space", path_.string()));
  }
}

void RunFolder::write_summary(const Json& summary) const {
  apps::write_text(path_ / "summary.json", summary.dump(2) + "\n");
}

std::string Checkpoint::folder() const {
  return fmt::format("checkpoint-{}", step);
}

void write_checkpoint(const fs::path& run, const Checkpoint& checkpoint) {
  const Json json{{"format", kRunFormat},
                  {"step", checkpoint.step},
                  {"folder", checkpoint.folder()},
                  {"seconds", checkpoint.seconds},
                  {"bytes_sent_total", checkpoint.bytes_sent_total},
                  {"payload_total", checkpoint.payload_total},
                  {"evaluated", checkpoint.evaluated},
                  {"accuracy", checkpoint.accuracy},
                  {"best_accuracy", checkpoint.best_accuracy},
                  {"loss", checkpoint.loss},
                  {"model_checksum", fmt::format("{:016x}", checkpoint.model_checksum)}};
  apps::write_text(run / "checkpoint.json", json.dump(2) + "\n");
}

Checkpoint read_checkpoint(const fs::path& run) {
  const fs::path file = run / "checkpoint.json";
  if (!fs::exists(file)) {
    throw Error(ErrorCode::unavailable,
                fmt::format("{} has no checkpoint.json: the run ended before its first checkpoint; "
                            "start it again with --out {} --overwrite",
                            run.string(), run.string()));
  }
  const std::string text = apps::read_text(file);
  try {
    const auto json = apps::parse_json(text);
    check_format(json);
    Checkpoint checkpoint;
    checkpoint.step = json.at("step").get<std::uint64_t>();
    checkpoint.seconds = json.at("seconds").get<double>();
    checkpoint.bytes_sent_total = json.at("bytes_sent_total").get<std::uint64_t>();
    checkpoint.payload_total = json.at("payload_total").get<std::uint64_t>();
    checkpoint.evaluated = json.value("evaluated", std::uint64_t{0});
    checkpoint.accuracy = json.at("accuracy").get<double>();
    checkpoint.best_accuracy = json.at("best_accuracy").get<double>();
    checkpoint.loss = json.at("loss").get<double>();
    checkpoint.model_checksum =
        std::stoull(json.at("model_checksum").get<std::string>(), nullptr, 16);
    return checkpoint;
  } catch (const Error& error) {
    throw Error(ErrorCode::bad_state, fmt::format("{}: {}", file.string(), error.what()));
  } catch (const nlohmann::json::exception& error) {
    throw damaged(file, apps::plain_text(error));
  } catch (const std::logic_error& error) {  // a checksum that is no number
    throw damaged(file, error.what());
  }
}

void remove_old_checkpoints(const fs::path& run, const Checkpoint& newest) {
  for (const auto& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("checkpoint-") || name == newest.folder()) continue;
    if (entry.is_directory()) fs::remove_all(entry.path());
  }
}

void read_config(const fs::path& run, TrainOptions& options) {
  const fs::path file = run / "config.json";
  if (!fs::exists(file)) {
    throw Error(ErrorCode::unavailable,
                fmt::format("'{}' {}; give a folder that `thinreduce train` wrote", run.string(),
                            fs::is_directory(run) ? "is not a run folder: it has no config.json"
                                                  : "does not exist or is not a folder"));
  }
  const std::string text = apps::read_text(file);
  const auto json = apps::parse_json_or_discard(text);
  if (json.is_discarded()) {
    throw Error(
        ErrorCode::bad_state,
        fmt::format("{} is not JSON: it is damaged, or not written by `thinreduce train`; give "
                    "another run folder",
                    file.string()));
  }
  try {
    check_format(json);
  } catch (const nlohmann::json::exception& error) {
    throw damaged(file, apps::plain_text(error));
  } catch (const Error& error) {
    throw Error(ErrorCode::bad_state, fmt::format("{}: {}", file.string(), error.what()));
  }
  from_json(json, file.string(), options);
  try {
    options.launch.ranks = json.at("ranks").get<int>();
    options.launch.transport = json.at("transport").get<std::string>();
    options.launch.link = Link::parse(json.at("link").get<std::string>());
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::bad_state,
                fmt::format("{}: {}; the file is damaged, or not written by `thinreduce train`",
                            file.string(), apps::plain_text(error)));
  }
}

}  // namespace thinreduce::train
