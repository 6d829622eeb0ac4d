// The commands of the program, each in a file of its own.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "apps/launch.h"

namespace thinreduce::apps {

int list_methods(bool json);

struct BenchCodecOptions {
  std::vector<std::string> specs;  // empty: every method with its defaults
  std::size_t floats = 25'600'000;
  int steps = 7;
  int warmup = -1;  // untimed steps; -1: the method's uncompressed steps and one more
  bool json = false;
};
int bench_codec(const BenchCodecOptions& options);

struct BenchReduceOptions {
  std::vector<std::string> specs;  // empty: every method with its defaults
  std::size_t floats = 25'600'000;
  int steps = 5;
  int warmup = -1;     // as above
  bool cycle = false;  // time a whole cycle of the method as well
  bool json = false;
  LaunchOptions launch;
};
int bench_reduce(const BenchReduceOptions& options);

}  // namespace thinreduce::apps
