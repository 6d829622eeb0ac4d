// Speed of the kernels on 25.6 M floats (102 MB, the gradient of a ResNet-50) on one core.
//
// memcpy of the same floats is timed first; each kernel's counter `of_memcpy` is its speed as a
// fraction of that, both in bytes of float32 gradient per second. Each bench checks its result and
// fails if it is wrong. THINREDUCE_SIMD chooses the instruction set.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "bench/memcpy_seconds.h"
#include "bench/run_benchmarks.h"
#include "thinreduce/kernels/bf16.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/top_selector.h"
#include "thinreduce/methods/topk/payload.h"

namespace thinreduce {
namespace {

constexpr std::size_t kElements = 25'600'000;
constexpr std::size_t kBytes = kElements * sizeof(float);
// A prime stride, so that the checks of single elements cover all lanes.
constexpr std::size_t kCheckStride = 9973;

using Floats = std::vector<float>;
using Words = std::vector<std::uint16_t>;

// Created once. A mixture of normal values of different deviations has the heavy tails of
// gradients.
const Floats& gradient() {
  static const Floats values = [] {
    Floats made(kElements);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto& value : made) value = normal(random) * 0.01f;
    for (std::size_t i = 0; i < kElements; i += 7) made[i] *= 5;
    return made;
  }();
  return values;
}

double memcpy_bytes_per_second() {
  static const double speed = static_cast<double>(kBytes) / memcpy_seconds(kBytes, 17)[8];
  return speed;
}

// Runs `work` in every iteration; its memory must have been touched before.
template <typename Work>
void time_bytes(benchmark::State& state, Work&& work) {
  (void)memcpy_bytes_per_second();
  work();
  double seconds = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    work();
    benchmark::ClobberMemory();
    const double taken =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(taken);
    seconds += taken;
  }
  const double speed = static_cast<double>(kBytes * state.iterations()) / seconds;
  state.counters["GB/s"] = speed / 1e9;
  state.counters["of_memcpy"] = speed / memcpy_bytes_per_second();
}

bool all_correct = true;

void expect(benchmark::State& state, bool holds, const char* what) {
  if (holds) return;
  all_correct = false;
  state.SkipWithError(what);
}

void copy(benchmark::State& state) {
  Floats out(kElements);
  time_bytes(state, [&] { std::memcpy(out.data(), gradient().data(), kBytes); });
  expect(state, out == gradient(), "the copy differs");
}

void add(benchmark::State& state) {
  Floats sum(kElements, 1.0f);
  time_bytes(state, [&] { kernels::add(sum, gradient()); });
  std::fill(sum.begin(), sum.end(), 1.0f);
  kernels::add(sum, gradient());
  for (std::size_t i = 0; i < kElements; i += kCheckStride) {
    expect(state, sum[i] == 1.0f + gradient()[i], "a sum is wrong");
  }
}

void scale(benchmark::State& state) {
  Floats values = gradient();
  // Alternates, so that the values do not drift.
  bool up = false;
  time_bytes(state, [&] { kernels::scale(values, (up = !up) ? 4.0f : 0.25f); });
  if (up) kernels::scale(values, 0.25f);
  expect(state, values == gradient(), "a product is wrong");
}

void first_nonfinite(benchmark::State& state) {
  std::size_t found = 0;
  time_bytes(state, [&] { found = kernels::first_nonfinite(gradient()); });
  expect(state, found == kElements, "something was found");
}

void to_bf16(benchmark::State& state) {
  Words words(kElements);
  time_bytes(state, [&] { kernels::to_bf16(gradient(), words); });
  Words expected(kElements);
  kernels::reference::to_bf16(gradient(), expected);
  expect(state, words == expected, "a word is wrong");
}

void from_bf16(benchmark::State& state) {
  Words words(kElements);
  kernels::to_bf16(gradient(), words);
  Floats out(kElements), expected(kElements);
  time_bytes(state, [&] { kernels::from_bf16(words, 0.25f, out); });
  kernels::reference::from_bf16(words, 0.25f, expected);
  expect(state, out == expected, "a value is wrong");
}

void add_bf16(benchmark::State& state) {
  Words words(kElements);
  kernels::to_bf16(gradient(), words);
  Floats sum(kElements);
  time_bytes(state, [&] { kernels::add_bf16(words, sum); });
  sum = gradient();
  Floats expected = gradient();
  kernels::add_bf16(words, sum);
  kernels::reference::add_bf16(words, expected);
  expect(state, sum == expected, "a value is wrong");
}

// Checks by counting: exactly k values are at least the smallest selected one (there are few ties).
void expect_top(benchmark::State& state, const Floats& values, const Selected& selected,
                std::size_t k) {
  expect(state, selected.indices.size() == k, "not k values");
  std::uint32_t smallest = ~0u;
  for (std::size_t i = 0; i < selected.indices.size(); ++i) {
    smallest = std::min(smallest, kernels::magnitude(selected.values[i]));
    expect(state, i == 0 || selected.indices[i - 1] < selected.indices[i], "not in order");
    expect(state, selected.values[i] == values[selected.indices[i]], "another value");
  }
  std::size_t larger = 0;
  for (const float value : values) larger += kernels::magnitude(value) > smallest;
  expect(state, larger < k, "a larger one was left out");
}

void select_top(benchmark::State& state) {
  const auto k = static_cast<std::size_t>(state.range(0)) * kElements / 10000;
  TopSelector selector;
  Selected selected;
  time_bytes(state, [&] { selected = selector.select(gradient(), k); });
  expect_top(state, gradient(), selected, k);
}

// The whole encoder of the top-k method, with error feedback.
void topk_encode(benchmark::State& state) {
  const auto k = static_cast<std::size_t>(state.range(0)) * kElements / 10000;
  TopSelector selector;
  Selected selected;
  Floats residual(kElements);
  std::vector<std::byte> payload;
  const auto encode = [&] {
    selected = selector.add_select(residual, gradient(), k);
    write_topk_payload(selected, kElements, payload);
    for (const auto index : selected.indices) residual[index] = 0;
  };
  time_bytes(state, encode);
  // The values sent and the residual must add up to the input.
  Floats before = residual;
  encode();
  kernels::add(before, gradient());
  expect_top(state, before, selected, k);
  add_topk_payload(payload, 0, residual);
  expect(state, residual == before, "sent and kept do not add up");
}

// The whole decoder of the top-k method, for one rank's payload.
void topk_decode(benchmark::State& state) {
  const auto k = static_cast<std::size_t>(state.range(0)) * kElements / 10000;
  TopSelector selector;
  const auto selected = selector.select(gradient(), k);
  std::vector<std::byte> payload;
  write_topk_payload(selected, kElements, payload);
  Floats mean(kElements);
  time_bytes(state, [&] {
    std::fill(mean.begin(), mean.end(), 0.0f);
    add_topk_payload(payload, 0, mean);
    kernels::scale(mean, 0.5f);
  });
  Floats expected(kElements);
  for (std::size_t i = 0; i < k; ++i) expected[selected.indices[i]] = selected.values[i] * 0.5f;
  expect(state, mean == expected, "a mean is wrong");
}

#define THINREDUCE_BENCH(name) \
  BENCHMARK(name)->UseManualTime()->Unit(benchmark::kMillisecond)->MinTime(0.5)
THINREDUCE_BENCH(copy)->Name("memcpy");
THINREDUCE_BENCH(add);
THINREDUCE_BENCH(scale);
THINREDUCE_BENCH(first_nonfinite);
THINREDUCE_BENCH(to_bf16);
THINREDUCE_BENCH(from_bf16);
THINREDUCE_BENCH(add_bf16);
THINREDUCE_BENCH(select_top)->ArgName("per_10000")->Arg(10)->Arg(100)->Arg(1000);
THINREDUCE_BENCH(topk_encode)->ArgName("per_10000")->Arg(10)->Arg(100)->Arg(1000);
THINREDUCE_BENCH(topk_decode)->ArgName("per_10000")->Arg(100);

}  // namespace
}  // namespace thinreduce

int main(int argc, char** argv) {
  return thinreduce::run_benchmarks(argc, argv, thinreduce::all_correct);
}
