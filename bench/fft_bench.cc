// Our block transforms against FFTW's best plan (single precision, measured), one core.
//
// Both transform the same 1 M floats as blocks of 256, 1024 and 4096, over and over. They take turns
// inside each iteration, so that a busy moment hits both; `of_fftw` is the median of our time over
// FFTW's in the same iteration. Each bench first checks that both have the same spectrum.
// THINREDUCE_SIMD chooses our instruction set.
#include <benchmark/benchmark.h>
#include <fftw3.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "thinreduce/error.h"
#include "thinreduce/kernels/aligned.h"
#include "thinreduce/kernels/block_transform.h"
#include "thinreduce/kernels/target.h"

namespace thinreduce {
namespace {

using kernels::AlignedFloats;
using kernels::kBlockLanes;

constexpr std::size_t kFloats = 1u << 20;

template <typename Work>
double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  benchmark::ClobberMemory();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// All blocks there and back with FFTW.
class Fftw {
 public:
  explicit Fftw(std::size_t length)
      : floats(kFloats), spectra(kFloats / length * (length + 2)), length_(length) {
    const int n = static_cast<int>(length);
    const int count = static_cast<int>(kFloats / length);
    auto* bins = reinterpret_cast<fftwf_complex*>(spectra.data());
    forward_ = fftwf_plan_many_dft_r2c(1, &n, count, floats.data(), nullptr, 1, n, bins, nullptr, 1,
                                       n / 2 + 1, FFTW_MEASURE);
    inverse_ = fftwf_plan_many_dft_c2r(1, &n, count, bins, nullptr, 1, n / 2 + 1, floats.data(),
                                       nullptr, 1, n, FFTW_MEASURE);
  }
  Fftw(const Fftw&) = delete;
  Fftw& operator=(const Fftw&) = delete;
  ~Fftw() {
    fftwf_destroy_plan(forward_);
    fftwf_destroy_plan(inverse_);
  }
  void forward() { fftwf_execute(forward_); }
  void inverse() { fftwf_execute(inverse_); }
  // Coefficient q > 1 of a block, in our scale.
  [[nodiscard]] float coefficient(std::size_t block, std::size_t q) const {
    return spectra[block * (length_ + 2) + q] * std::sqrt(2.0f / static_cast<float>(length_));
  }

  AlignedFloats floats;
  AlignedFloats spectra;

 private:
  std::size_t length_;
  fftwf_plan forward_;
  fftwf_plan inverse_;
};

class Ours {
 public:
  explicit Ours(std::size_t length)
      : floats(kFloats),
        spectra(kFloats),
        tables_(length, kernels::Transform::fft),
        scratch_(kBlockLanes * length) {}
  void forward() {
    for_groups([&](std::span<float> blocks, std::span<float> bins) {
      kernels::forward(tables_, blocks, bins, scratch_);
    });
  }
  void inverse() {
    for_groups([&](std::span<float> blocks, std::span<float> bins) {
      kernels::inverse(tables_, bins, blocks, scratch_);
    });
  }
  [[nodiscard]] float coefficient(std::size_t block, std::size_t q) const {
    return spectra[block / kBlockLanes * scratch_.size() + q * kBlockLanes + block % kBlockLanes];
  }

  AlignedFloats floats;
  AlignedFloats spectra;

 private:
  template <typename Work>
  void for_groups(Work&& work) {
    const std::size_t group = scratch_.size();
    for (std::size_t at = 0; at < kFloats; at += group) {
      work(std::span<float>(floats).subspan(at, group), std::span<float>(spectra).subspan(at, group));
    }
  }

  kernels::TransformTables tables_;
  AlignedFloats scratch_;
};

bool all_correct = true;

void compare(benchmark::State& state, bool back) {
  const auto length = static_cast<std::size_t>(state.range(0));
  Fftw fftw(length);
  Ours ours(length);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < kFloats; ++i) fftw.floats[i] = ours.floats[i] = normal(random);
  fftw.forward();
  ours.forward();
  for (std::size_t block = 0; block < kFloats / length; block += 3) {
    for (std::size_t q = 2; q < length; ++q) {
      if (std::abs(fftw.coefficient(block, q) - ours.coefficient(block, q)) < 1e-4f) continue;
      all_correct = false;
      return state.SkipWithError("our spectrum is not FFTW's");
    }
  }
  std::vector<double> ratios;
  double ours_total = 0;
  double fftw_total = 0;
  for (auto _ : state) {
    const double theirs = seconds_of([&] { back ? fftw.inverse() : fftw.forward(); });
    const double mine = seconds_of([&] { back ? ours.inverse() : ours.forward(); });
    state.SetIterationTime(mine);
    ratios.push_back(mine / theirs);
    ours_total += mine;
    fftw_total += theirs;
  }
  const auto bytes = static_cast<double>(kFloats * sizeof(float) * state.iterations());
  state.counters["of_fftw"] = median(ratios);
  state.counters["GB/s"] = bytes / ours_total / 1e9;
  state.counters["FFTW_GB/s"] = bytes / fftw_total / 1e9;
}

void forward(benchmark::State& state) {
  compare(state, false);
}
void inverse(benchmark::State& state) {
  compare(state, true);
}

#define THINREDUCE_BENCH(name)           \
  BENCHMARK(name)                        \
      ->UseManualTime()                  \
      ->Unit(benchmark::kMillisecond)    \
      ->ArgName("block")                 \
      ->Arg(256)                         \
      ->Arg(1024)                        \
      ->Arg(4096)                        \
      ->MinTime(0.5)
THINREDUCE_BENCH(forward);
THINREDUCE_BENCH(inverse);

// Returns whether all that was timed was correct.
bool run(int argc, char** argv) {
  benchmark::AddCustomContext("kernels", kernels::active_target());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return false;
  benchmark::RunSpecifiedBenchmarks();
  return all_correct;
}

}  // namespace
}  // namespace thinreduce

int main(int argc, char** argv) {
  try {
    return thinreduce::run(argc, argv) ? 0 : 1;
  } catch (const thinreduce::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
