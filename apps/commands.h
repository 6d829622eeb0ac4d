// The commands of the program, one file per command. Each returns the exit code.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/gradients.h"
#include "apps/launch.h"

namespace thinreduce::apps {

// Lists one method, or all where `name` is "".
int list_methods(const std::string& name, bool json);

struct BenchCodecOptions {
  std::vector<std::string> specs;  // at least one
  std::size_t floats = 25'600'000;
  int steps = 7;                    // timed ones
  int warmup = -1;                  // untimed steps; -1: the method's uncompressed steps plus one
  int threads = 1;                  // that share the work of a rank
  std::filesystem::path gradients;  // folder of recorded gradients; empty: a synthetic gradient
  std::string shapes = "resnet50";  // of the synthetic gradient's tensors; or "none"
  bool json = false;
};
int bench_codec(const BenchCodecOptions& options);

// Runs one method over all recorded steps with all recorded ranks; returns the result.
nlohmann::ordered_json bench_gradients(const RecordedGradients& recorded, const std::string& spec,
                                       int threads, bool quiet);

struct BenchReduceOptions {
  std::vector<std::string> specs;  // at least one
  std::size_t floats = 25'600'000;
  int steps = 5;
  int warmup = -1;                  // as above
  int threads = 1;                  // the same
  bool cycle = false;               // also time a whole cycle of the method
  std::string shapes = "resnet50";  // as above
  bool json = false;
  LaunchOptions launch;
};
int bench_reduce(const BenchReduceOptions& options);

struct PlanOptions {
  std::string spec = "auto";        // with its options
  std::size_t floats = 25'600'000;  // of a synthetic gradient
  std::filesystem::path gradients;  // folder of recorded gradients; empty: a synthetic gradient
  std::string model;                // of the trainer, whose gradients are to be recorded; "": none
  std::filesystem::path data_dir;   // of its data; empty: the trainer's default
  bool probe = false;               // on real ranks; else on a virtual cluster
  double compute = 0;               // seconds per step without exchange; 0: not known
  std::string html;                 // page to write; "": none
  bool json = false;
  LaunchOptions launch;
};
int plan(const PlanOptions& options);

struct ReportOptions {
  std::vector<std::string> runs;       // folders that `thinreduce train` wrote
  std::string codec;                   // file with the output of `bench codec --json`, or ""
  std::string output = "report.html";  // "-": standard output
  bool json = false;
};
int report(const ReportOptions& options);

}  // namespace thinreduce::apps
