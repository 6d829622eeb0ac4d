// A training run, read from its folder; docs/run-folder.md describes the files.
#pragma once

#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "thinreduce/plan/plan.h"

namespace thinreduce::apps {

// Figures that are missing or null in a file are NaN: charts show a gap, tables a dash.
inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

struct RunConfig {
  std::string method;       // spec with all options
  std::string method_name;  // name alone
  std::string data;
  std::string model;
  std::string transport;
  std::string link;
  std::string optimizer;
  std::string schedule;
  std::string simd;
  std::string started;
  std::string version;
  bool judged_by_loss = false;  // a language model; others are judged by their accuracy
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
  double seconds = kMissing;  // training time at the end of the step
  double step_seconds = kMissing;
  double compute = kMissing;
  double exposed = kMissing;
  double encode = kMissing;
  double wire = kMissing;
  double decode = kMissing;
  double wait = kMissing;
  double bytes_sent = kMissing;
  double payload_bytes = kMissing;
  std::map<std::string, double> statistics;  // of the method, by name
};

struct RunEvaluation {
  double step = kMissing;
  double seconds = kMissing;
  double bytes_sent = kMissing;  // since the start of the run
  double accuracy = kMissing;
  double loss = kMissing;
};

struct RunRecord {
  std::filesystem::path folder;
  RunConfig config;
  std::vector<RunStep> steps;
  std::vector<RunEvaluation> evaluations;
  // finished, interrupted, or "incomplete" for a run that is still running or crashed.
  std::string status;
  // From the summary, or from the completed steps.
  double accuracy = kMissing;
  double loss = kMissing;  // on the test data
  double seconds = kMissing;
  double steps_done = kMissing;
  double step_seconds = kMissing;  // median
  double bytes_sent = kMissing;
  double ratio = kMissing;
  std::optional<bool> identical;
  std::optional<Plan> plan;  // only a run with the method `auto` has one
};

// Throws Error that names the file, the line and the problem. Skips a cut last line of a run that
// was killed.
[[nodiscard]] RunRecord read_run(const std::filesystem::path& folder);

}  // namespace thinreduce::apps
