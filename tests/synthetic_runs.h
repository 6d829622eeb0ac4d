// Synthetic run folders in the format of `thinreduce train`, with curves that look like a training,
// for tests of the report.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace thinreduce::testing_support {

struct SyntheticRun {
  std::string method = "fp32";
  double ratio = 1;                                      // compression ratio
  double encode = 0;                                     // seconds per step
  double decode = 0;                                     // seconds per step
  double learning = 1;                                   // relative speed of learning
  double best = 0.99;                                    // accuracy at the end, about
  int steps = 468;                                       // of the whole run
  int stop = -1;                                         // last step, or -1 for all
  std::string status = "finished";                       // "": no summary
  nlohmann::json config = nlohmann::json::object();      // settings other than the defaults
  nlohmann::json statistics = nlohmann::json::object();  // of every step
};

inline void write_file(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

inline std::string read_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline std::filesystem::path write_run(const std::filesystem::path& folder,
                                       const SyntheticRun& run) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  constexpr double kParameters = 1'663'370;
  constexpr double kCompute = 0.045;
  constexpr double kHidden = 0.03;  // seconds of the exchange that overlap with backward
  constexpr double kLink = 300e6 / 8;
  nlohmann::json config{{"format", 1},
                        {"version", "0.1.0"},
                        {"method", run.method},
                        {"method_name", run.method.substr(0, run.method.find(':'))},
                        {"data", "mnist"},
                        {"model", "lenet"},
                        {"parameters", kParameters},
                        {"ranks", 4},
                        {"transport", "threads"},
                        {"link", "300mbit,1ms"},
                        {"batch", 32},
                        {"global_batch", 128},
                        {"epochs", 1.0},
                        {"steps", run.steps},
                        {"optimizer", "sgd"},
                        {"learning_rate", 0.05},
                        {"schedule", "onecycle"},
                        {"seed", 1},
                        {"cores", 2},
                        {"simd", "AVX2"},
                        {"started", "2026-01-31T12:00:00Z"}};
  config.update(run.config);
  write_file(folder / "config.json", config.dump(2));
  // A language model has no accuracy.
  const bool by_loss = config.value("metric", "") == "loss";

  std::mt19937 random(std::hash<std::string>()(run.method) % 1000);
  std::normal_distribution<double> noise(0, 1);
  const double payload = kParameters * 4 / run.ratio;
  const double sent = payload * 1.5;  // ring of four ranks
  const int last = run.stop < 0 ? run.steps : run.stop;
  const int every = std::max(1, run.steps / 20);
  double seconds = 0;
  double accuracy = 0.1;
  double loss = 0;
  double best = 0;
  int evaluations = 0;
  std::ofstream steps(folder / "steps.jsonl");
  std::ofstream tests(folder / "evaluations.jsonl");
  for (int step = 1; step <= last; ++step) {
    const double wire = sent / kLink * (1 + 0.03 * noise(random));
    const double wait = 0.006 * std::abs(noise(random));
    const double exposed = std::max(0.0, wire + run.encode + run.decode + wait - kHidden) + 0.001;
    const double taken = kCompute * (1 + 0.02 * noise(random)) + exposed;
    seconds += taken;
    const double progress = run.learning * step / 40.0;
    loss = 0.04 + 2.26 * std::exp(-progress) + 0.25 / (1 + progress);
    steps << nlohmann::json{{"step", step},
                            {"epoch", 0},
                            {"loss", loss * (1 + 0.2 * noise(random))},
                            {"learning_rate", 0.05},
                            {"seconds", seconds},
                            {"step_seconds", taken},
                            {"compute_seconds", taken - exposed},
                            {"exposed_seconds", exposed},
                            {"stages",
                             {{"encode", run.encode},
                              {"wire", wire},
                              {"decode", run.decode},
                              {"wait", wait}}},
                            {"bytes_sent", sent},
                            {"payload_bytes", payload},
                            {"statistics", run.statistics}}
                 .dump()
          << "\n";
    if (step % every != 0 && step != last) continue;
    ++evaluations;
    accuracy = run.best - (run.best - 0.1) * std::exp(-1.3 * std::pow(progress, 0.7)) +
               0.002 * noise(random) / (1 + 0.3 * progress);
    best = std::max(best, accuracy);
    tests << nlohmann::json{{"step", step},
                            {"epoch", 0},
                            {"seconds", seconds},
                            {"bytes_sent_total", sent * step},
                            {"loss", loss},
                            {"samples", 2000},
                            {"accuracy", by_loss ? nlohmann::json() : nlohmann::json(accuracy)}}
                 .dump()
          << "\n";
  }
  if (run.status.empty()) return folder;
  const nlohmann::json summary{
      {"format", 1},
      {"status", run.status},
      {"method", run.method},
      {"accuracy", evaluations > 0 && !by_loss ? nlohmann::json(accuracy) : nlohmann::json()},
      {"best_accuracy", by_loss ? nlohmann::json() : nlohmann::json(best)},
      {"loss", evaluations > 0 ? nlohmann::json(loss) : nlohmann::json()},
      {"seconds", seconds},
      {"steps", last},
      {"bytes_sent_total", sent * last},
      {"ratio", run.ratio},
      {"step_seconds", last > 0 ? seconds / last : 0},
      {"identical", true}};
  write_file(folder / "summary.json", summary.dump(2));
  return folder;
}

}  // namespace thinreduce::testing_support
