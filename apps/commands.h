// The commands of the program, each in a file of its own.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/gradients.h"
#include "apps/launch.h"

namespace thinreduce::apps {

int list_methods(bool json);

struct BenchCodecOptions {
  std::vector<std::string> specs;  // at least one
  std::size_t floats = 25'600'000;
  int steps = 7;
  std::filesystem::path gradients;  // recorded by `train --save-gradients`; empty: synthetic ones
  int warmup = -1;  // untimed steps; -1: the method's uncompressed steps and one more
  bool json = false;
};
int bench_codec(const BenchCodecOptions& options);

// One method over all recorded steps, with all recorded ranks.
nlohmann::ordered_json bench_gradients(const RecordedGradients& recorded, const std::string& spec,
                                       bool quiet);

struct BenchReduceOptions {
  std::vector<std::string> specs;  // at least one
  std::size_t floats = 25'600'000;
  int steps = 5;
  int warmup = -1;     // as above
  bool cycle = false;  // time a whole cycle of the method as well
  bool json = false;
  LaunchOptions launch;
};
int bench_reduce(const BenchReduceOptions& options);

struct ReportOptions {
  std::vector<std::string> runs;  // folders that `thinreduce train` wrote
  std::string codec;              // what `bench codec --json` printed, or ""
  std::string output = "report.html";
  bool json = false;
};
int report(const ReportOptions& options);

}  // namespace thinreduce::apps
