// Measures the memory that each method needs beyond the gradient: the growth of the resident set,
// in bytes per element and rank, over some steps, and then while the state is saved.
//
//   build/release/bin/memory_bench [floats per rank] [spec ...]
//
// Every spec runs in a process of its own, with two ranks as threads and one bucket of matrices.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "thinreduce/engine/session.h"
#include "thinreduce/method/describe.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kColumns = 1024;

// Returns a field of /proc/self/status in bytes.
double status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return 1024 * std::stod(line.substr(field.size() + 1));
  }
  return std::nan("");
}
// Makes the peak of the resident set start again from its size now.
void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << 5;
}

BucketLayout matrices(std::size_t floats) {
  BucketLayout layout;
  for (std::size_t rows = floats / kColumns; rows > 0;) {
    const std::size_t part = std::min<std::size_t>(rows, 2048);
    layout.add(fmt::format("matrix{}", layout.tensors.size()),
               {static_cast<std::int64_t>(part), kColumns});
    rows -= part;
  }
  return layout;
}

void fill(std::vector<float>& values, std::uint64_t seed) {
  for (auto& value : values) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<std::int32_t>(seed >> 32)) * 1e-9F;
  }
}

template <typename Work>
void on_all_ranks(Work&& work) {
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < kRanks; ++rank) ranks.emplace_back([&, rank] { work(rank); });
}

void measure(const std::string& spec, std::size_t floats) {
  const BucketLayout layout = matrices(floats);
  std::vector<std::vector<float>> values(kRanks, std::vector<float>(layout.elements));
  on_all_ranks([&](std::size_t rank) { fill(values[rank], rank + 1); });
  auto transports = connect_threads(kRanks);
  std::vector<std::unique_ptr<Session>> sessions(kRanks);
  const Spec parsed = Spec::parse(spec);
  const std::uint64_t steps = parsed.info->cycle(parsed.options).start + 3;
  const double before = status_bytes("VmRSS");
  reset_peak();
  on_all_ranks([&](std::size_t rank) {
    sessions[rank] = std::make_unique<Session>(
        std::move(transports[rank]), SessionOptions{.spec = spec, .momentum_inside_ok = true});
    const auto bucket = sessions[rank]->add_bucket(layout);
    for (std::uint64_t step = 0; step < steps; ++step) {
      fill(values[rank], 2 * step + rank);
      sessions[rank]->submit(bucket, values[rank]).get();
    }
  });
  const auto per_element = [&](const char* field) {
    return (status_bytes(field) - before) / static_cast<double>(kRanks * layout.elements);
  };
  const double reducing = per_element("VmHWM");
  reset_peak();
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("memory{}", getpid());
  std::filesystem::create_directory(folder);
  on_all_ranks(
      [&](std::size_t rank) { sessions[rank]->save(folder / fmt::format("rank{}.state", rank)); });
  const double saving = per_element("VmHWM");
  std::filesystem::remove_all(folder);
  fmt::print("{:<24} {:>9.2f} {:>9.2f}\n", spec, reducing, saving);
  std::fflush(stdout);
}

int run(std::size_t floats, const std::vector<std::string>& specs) {
  fmt::print("{:<24} {:>9} {:>9}   bytes per element, {} floats on each of {} ranks\n", "spec",
             "reducing", "saving", floats / kColumns * kColumns, kRanks);
  std::fflush(stdout);
  int failed = 0;
  for (const std::string& spec : specs) {
    const pid_t child = fork();
    if (child == 0) {
      measure(spec, floats);
      std::_Exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      fmt::print("{:<24} failed\n", spec);
      ++failed;
    }
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace thinreduce

int main(int argc, char** argv) {
  const std::size_t floats = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 25'000'000;
  std::vector<std::string> specs(argv + std::min(argc, 2), argv + argc);
  if (specs.empty()) {
    for (const auto& method : thinreduce::describe_methods()) specs.push_back(method.name);
  }
  return thinreduce::run(floats, specs);
}
