// Our block transforms against FFTW's best plan (single precision, measured) on one core.
//
// Both transform the same 1 M floats as blocks of 256, 1024 and 4096, repeatedly. They take turns
// inside each iteration, so that a busy moment affects both; `of_fftw` is our shortest time over
// FFTW's shortest. FFTW plans three times and its fastest plan counts, because its planner measures
// too and errs on a busy machine. Each bench first checks that both spectra are equal.
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

#include "bench/run_benchmarks.h"
#include "thinreduce/kernels/aligned.h"
#include "thinreduce/kernels/block_transform.h"

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

// Transforms all blocks forward and back with FFTW, with one plan for all or one per block.
class Fftw {
 public:
  enum class Way { all_measured, all_estimated, one_measured };

  Fftw(std::size_t length, Way way)
      : floats(kFloats),
        spectra(kFloats / length * (length + kGap)),
        length_(length),
        repeats_(way == Way::one_measured ? kFloats / length : 1) {
    const int n = static_cast<int>(length);
    const int count = static_cast<int>(kFloats / length / repeats_);
    const unsigned effort = way == Way::all_estimated ? FFTW_ESTIMATE : FFTW_MEASURE;
    forward_ = fftwf_plan_many_dft_r2c(1, &n, count, floats.data(), nullptr, 1, n, bins(0), nullptr,
                                       1, (n + kGap) / 2, effort);
    inverse_ = fftwf_plan_many_dft_c2r(1, &n, count, bins(0), nullptr, 1, (n + kGap) / 2,
                                       floats.data(), nullptr, 1, n, effort);
  }
  Fftw(const Fftw&) = delete;
  Fftw& operator=(const Fftw&) = delete;
  ~Fftw() {
    fftwf_destroy_plan(forward_);
    fftwf_destroy_plan(inverse_);
  }
  void forward() {
    for (std::size_t i = 0; i < repeats_; ++i) {
      fftwf_execute_dft_r2c(forward_, &floats[i * length_], bins(i));
    }
  }
  void inverse() {
    for (std::size_t i = 0; i < repeats_; ++i) {
      fftwf_execute_dft_c2r(inverse_, bins(i), &floats[i * length_]);
    }
  }
  // Returns coefficient q > 1 of a block, in our scale.
  [[nodiscard]] float coefficient(std::size_t block, std::size_t q) const {
    return spectra[block * (length_ + kGap) + q] * std::sqrt(2.0f / static_cast<float>(length_));
  }

  AlignedFloats floats;
  AlignedFloats spectra;

 private:
  // FFTW's spectra are two floats longer than the blocks; a cache line keeps them aligned.
  static constexpr int kGap = 16;

  [[nodiscard]] fftwf_complex* bins(std::size_t block) {
    return reinterpret_cast<fftwf_complex*>(&spectra[block * (length_ + kGap)]);
  }

  std::size_t length_;
  std::size_t repeats_;
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
      kernels::inverse(tables_, bins, 1, blocks, scratch_);
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
      work(std::span<float>(floats).subspan(at, group),
           std::span<float>(spectra).subspan(at, group));
    }
  }

  kernels::TransformTables tables_;
  AlignedFloats scratch_;
};

bool all_correct = true;

enum class Direction { forward, inverse };

void compare(benchmark::State& state, Direction direction) {
  const auto length = static_cast<std::size_t>(state.range(0));
  std::vector<std::unique_ptr<Fftw>> fftws;
  for (const auto way :
       {Fftw::Way::all_measured, Fftw::Way::all_estimated, Fftw::Way::one_measured}) {
    fftws.push_back(std::make_unique<Fftw>(length, way));
  }
  Ours ours(length);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (auto& value : ours.floats) value = normal(random);
  ours.forward();
  for (auto& fftw : fftws) {
    fftw->floats = ours.floats;
    fftw->forward();
    for (std::size_t block = 0; block < kFloats / length; block += 3) {
      for (std::size_t q = 2; q < length; ++q) {
        if (std::abs(fftw->coefficient(block, q) - ours.coefficient(block, q)) < 1e-4f) continue;
        all_correct = false;
        return state.SkipWithError("our spectrum is not FFTW's");
      }
    }
  }
  double best_ours = 1e9;
  double best_fftw = 1e9;
  for (auto _ : state) {
    for (auto& fftw : fftws) {
      best_fftw = std::min(best_fftw, seconds_of([&] {
                             direction == Direction::forward ? fftw->forward() : fftw->inverse();
                           }));
    }
    const double mine =
        seconds_of([&] { direction == Direction::forward ? ours.forward() : ours.inverse(); });
    state.SetIterationTime(mine);
    best_ours = std::min(best_ours, mine);
  }
  const auto bytes = static_cast<double>(kFloats * sizeof(float));
  state.counters["of_fftw"] = best_ours / best_fftw;
  state.counters["GB/s"] = bytes / best_ours / 1e9;
  state.counters["FFTW_GB/s"] = bytes / best_fftw / 1e9;
}

void forward(benchmark::State& state) {
  compare(state, Direction::forward);
}
void inverse(benchmark::State& state) {
  compare(state, Direction::inverse);
}

#define THINREDUCE_BENCH(name)        \
  BENCHMARK(name)                     \
      ->UseManualTime()               \
      ->Unit(benchmark::kMillisecond) \
      ->ArgName("block")              \
      ->Arg(256)                      \
      ->Arg(1024)                     \
      ->Arg(4096)                     \
      ->MinTime(0.5)
THINREDUCE_BENCH(forward);
THINREDUCE_BENCH(inverse);

}  // namespace
}  // namespace thinreduce

int main(int argc, char** argv) {
  return thinreduce::run_benchmarks(argc, argv, thinreduce::all_correct);
}
