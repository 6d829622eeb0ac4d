// The cost of checking every message: the speed of the hash on one core, and rings of a virtual
// cluster with and without it.
//
// This program replaces the library's checksum() when it is linked, by the same function behind a
// switch, so that both kinds of ring run in turns in one process and the library needs no switch.
// Without the hash, the 8 bytes of a checksum still travel. A figure is the median of its rounds.
// In real time the wake-ups of threads hide what small rings cost.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/transport/simulate.h"
#include "thinreduce/transport/transport.h"
#include "thinreduce/wire/checksum.h"
#include "thinreduce/wire/xxh3.h"

namespace thinreduce {
namespace {

std::atomic<bool> hashing{true};

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return checksum(bytes, 0);
}
std::uint64_t checksum(std::string_view text) {
  return checksum(std::as_bytes(std::span(text)));
}
std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
  return hashing ? xxh3(bytes.data(), bytes.size(), seed) : 0;
}

namespace {

constexpr int kRanks = 2;

double seconds_since(Clock::time_point start) {
  return Seconds(Clock::now() - start).count();
}

// Returns the seconds per byte of the hash over `bytes` bytes at a time of a buffer of 64 MiB;
// `again` hashes the same ones, which are then in the cache.
double hash_seconds_per_byte(std::size_t bytes, bool again) {
  const std::vector<std::byte> buffer(std::size_t{64} << 20, std::byte{7});
  double best = 1;
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at + bytes <= buffer.size(); at += bytes) {
    const auto run = std::span(buffer).subspan(again ? 0 : at, bytes);
    const auto start = Clock::now();
    sum += checksum(run);
    asm volatile("" : : "r"(&sum) : "memory");  // the compiler must not drop the hash
    best = std::min(best, seconds_since(start) / static_cast<double>(bytes));
  }
  return best;
}

// Runs rings with and without the hash in turns; returns their median seconds.
struct Medians {
  double with = 0;
  double without = 0;
};
Medians ring_seconds(const std::string& link, std::size_t floats, int rounds) {
  auto transports =
      simulate(connect_threads(kRanks), {.links = ClusterLinks::parse(link), .cores = kRanks});
  std::array<std::vector<double>, 2> seconds;  // without, with
  std::vector<std::jthread> ranks;
  std::barrier together(kRanks);
  for (auto& transport : transports) {
    ranks.emplace_back([&] {
      std::vector<float> values(floats, 1.0F);
      for (int round = 0; round < 2 * rounds; ++round) {
        together.arrive_and_wait();
        if (transport->rank() == 0) hashing = round % 2 == 1;
        transport->align();
        Exchange exchange(*transport, Seconds{30}, {.step = static_cast<std::uint64_t>(round)});
        const auto start = transport->now();
        sum_floats(exchange, values, 0.5F);
        const Seconds took = transport->now() - start;
        if (transport->rank() == 0) {
          seconds[static_cast<std::size_t>(round % 2)].push_back(took.count());
        }
      }
    });
  }
  ranks.clear();
  for (auto& times : seconds) std::sort(times.begin(), times.end());
  return {seconds[1][seconds[1].size() / 2], seconds[0][seconds[0].size() / 2]};
}

void run() {
  for (const std::size_t kib : {16, 512, 4096}) {
    const std::size_t bytes = kib * 1024;
    const double cold = hash_seconds_per_byte(bytes, false);
    const double hot = hash_seconds_per_byte(bytes, true);
    fmt::print("hash of {} KiB: {:.1f} GB/s from memory, {:.1f} GB/s from the cache\n", kib,
               1e-9 / cold, 1e-9 / hot);
    for (const double gbit : {10.0, 1.0}) {
      // Two ranks hash every byte that they send and every byte that they receive.
      fmt::print("  CPU time of both ends of a ring, of the wire's at {} Gbit: {:.1f} %\n", gbit,
                 100 * 2 * hot / (8e-9 / gbit));
    }
  }
  for (const char* link : {"10gbit", "1gbit"}) {
    for (const std::size_t floats : {65'536, 1 << 20, 1 << 23}) {
      // As many rounds as take the time of 15 with the largest ring. The smallest varies most.
      const int rounds = static_cast<int>(
          floats < (1 << 20) ? 10'001 : std::max<std::size_t>((15u << 23) / floats, 15));
      const Medians medians = ring_seconds(link, floats, rounds);
      fmt::print("ring of {:.2f} MB at {}: {:.3f} ms with the hash, {:.3f} ms without: {:+.1f} %\n",
                 4e-6 * static_cast<double>(floats), link, 1e3 * medians.with,
                 1e3 * medians.without, 100 * (medians.with / medians.without - 1));
    }
  }
}

}  // namespace
}  // namespace thinreduce

int main() {
  thinreduce::run();
  return EXIT_SUCCESS;
}
