// The main function of a program of Google Benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdio>

#include "thinreduce/error.h"
#include "thinreduce/kernels/target.h"

namespace thinreduce {

// Runs the registered benchmarks. Returns the exit code: 1 for wrong arguments or if `all_correct`
// is false afterwards, 2 for an Error.
inline int run_benchmarks(int argc, char** argv, const bool& all_correct) {
  try {
    benchmark::AddCustomContext("kernels", kernels::active_target());
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    benchmark::RunSpecifiedBenchmarks();
    return all_correct ? 0 : 1;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}

}  // namespace thinreduce
