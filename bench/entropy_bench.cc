// Speed and size of the entropy coder on one core: symbols per second, also as a fraction of
// memcpy's bytes per second in the same run, and coded bytes against the symbols' empirical
// entropy. Best of many rounds. Fails if the decoded symbols differ.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "bench/memcpy_seconds.h"
#include "thinreduce/wire/entropy.h"

namespace thinreduce {
namespace {

// The number that the methods code with one table.
constexpr std::size_t kSymbols = 409'600;
constexpr int kRounds = 60;

template <typename Work>
double best_seconds(int rounds, Work&& work) {
  double best = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// Quantizes normal values with the scale of a block whose largest magnitude is about three
// deviations.
std::vector<std::uint8_t> quantized_normal(std::uint32_t alphabet) {
  std::mt19937 random(1);
  const double most = (alphabet - 1) / 2.0;
  std::normal_distribution<double> normal(most, std::hypot(most / 3, std::sqrt(1 / 12.0)));
  std::vector<std::uint8_t> symbols(kSymbols);
  for (auto& symbol : symbols) {
    symbol = static_cast<std::uint8_t>(std::clamp(std::round(normal(random)), 0.0, 2 * most));
  }
  return symbols;
}

double entropy_bytes(const std::vector<std::uint8_t>& symbols) {
  std::vector<double> counts(256);
  for (const auto symbol : symbols) ++counts[symbol];
  double bits = 0;
  for (const double count : counts) {
    if (count > 0) bits += count * std::log2(static_cast<double>(symbols.size()) / count);
  }
  return bits / 8;
}

bool measure(std::uint32_t alphabet, double copied) {
  const auto symbols = quantized_normal(alphabet);
  EntropyCoder coder(alphabet);
  std::vector<std::byte> bytes;
  std::vector<std::uint8_t> back(symbols.size());
  bool good = true;
  const double encode = best_seconds(kRounds, [&] {
    bytes.clear();
    good &= coder.encode(symbols, symbols.size() * 2, bytes);
  });
  const double decode = best_seconds(kRounds, [&] { coder.decode(bytes, "bench", back); });
  good &= back == symbols;
  const double size = entropy_bytes(symbols);
  fmt::print(
      "{:>3} symbols: encode {:>4.0f} M/s ({:.3f} of memcpy), decode {:>4.0f} M/s ({:.3f}), "
      "{} bytes, entropy {:.0f}: +{:.2f} % with the table{}\n",
      alphabet, kSymbols / encode / 1e6, kSymbols / encode / copied, kSymbols / decode / 1e6,
      kSymbols / decode / copied, bytes.size(), size,
      100 * (static_cast<double>(bytes.size()) / size - 1), good ? "" : "  WRONG");
  return good;
}

}  // namespace
}  // namespace thinreduce

int main() {
  constexpr std::size_t kCopied = 100'000'000;
  const double copied =
      static_cast<double>(kCopied) / thinreduce::memcpy_seconds(kCopied, 12).front();
  fmt::print("memcpy: {:.2f} GB/s\n", copied / 1e9);
  bool good = true;
  for (const std::uint32_t alphabet : {3U, 7U, 15U}) good &= thinreduce::measure(alphabet, copied);
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
