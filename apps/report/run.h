// A training run as its folder tells it; docs/run-folder.md describes the files.
#pragma once

#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace thinreduce::apps {

// A figure that a file does not have, or has as null, is NaN: drawn as a gap, shown as a dash.
inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

struct RunConfig {
  std::string method;       // the spec with every option
  std::string method_name;  // only its name
  std::string data;
  std::string model;
  std::string transport;
  std::string link;
  std::string optimizer;
  std::string schedule;
  std::string simd;
  std::string started;
  std::string version;
  double parameters = kMissing;
  double ranks = kMissing;
  double batch = kMissing;
  double epochs = kMissing;
  double steps = kMissing;
  double learning_rate = kMissing;
  double seed = kMissing;
  double cores = kMissing;
};

struct RunStep {
  double step = kMissing;
  double loss = kMissing;
  double seconds = kMissing;  // the training clock at the end of the step
  double step_seconds = kMissing;
  double compute = kMissing;
  double exposed = kMissing;
  double encode = kMissing;
  double wire = kMissing;
  double decode = kMissing;
  double wait = kMissing;
  double bytes_sent = kMissing;
  double payload_bytes = kMissing;
  std::map<std::string, double> statistics;  // what the method tells, by name
};

struct RunEvaluation {
  double step = kMissing;
  double seconds = kMissing;
  double bytes_sent = kMissing;  // since the start
  double accuracy = kMissing;
};

struct RunRecord {
  std::filesystem::path folder;
  RunConfig config;
  std::vector<RunStep> steps;
  std::vector<RunEvaluation> evaluations;
  // finished, interrupted, or "incomplete" for a run that goes on or crashed.
  std::string status;
  // From the summary, or as far as the run came.
  double accuracy = kMissing;
  double seconds = kMissing;
  double steps_done = kMissing;
  double step_seconds = kMissing;  // median
  double bytes_sent = kMissing;
  double ratio = kMissing;
  std::optional<bool> identical;
};

// Throws Error naming the file, the line and what is wrong with it. The last line of a run that was
// killed may be cut: it is left out.
[[nodiscard]] RunRecord read_run(const std::filesystem::path& folder);

}  // namespace thinreduce::apps
