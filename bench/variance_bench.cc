// How fast a rank decodes and adds what the others send by the method `variance`, in GB/s of words:
// 4 bytes for each value, in the compact form as well, which has fewer. Median of several rounds.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <vector>

#include "thinreduce/methods/variance_payload.h"

namespace thinreduce {
namespace {

VarianceSent random_sent(std::size_t elements, double density) {
  std::mt19937 random(1);
  VarianceSent sent;
  const auto least = static_cast<std::uint32_t>(density * 0x1p32);
  for (std::size_t i = 0; i < elements; ++i) {
    if (random() >= least) continue;
    sent.indices.push_back(static_cast<std::uint32_t>(i));
    sent.codes.push_back(static_cast<std::uint8_t>(random() % 16));
  }
  sent.parts = {{static_cast<std::uint32_t>(sent.indices.size()), 120}};
  return sent;
}

// Also says whether the sum is right.
double gbps(VarianceFormat::Places places, const VarianceSent& sent, std::vector<float>& sum) {
  const VariancePayload codec({.places = places}, {{0, sum.size()}});
  std::vector<std::byte> payload;
  codec.write(sent, payload);
  std::vector<double> seconds;
  std::fill(sum.begin(), sum.end(), 0.0F);
  constexpr int kRounds = 9;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    codec.add(payload, 0, 1.0F, sum);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  for (std::size_t i = 0; i < sent.indices.size(); ++i) {
    if (sum[sent.indices[i]] != kRounds * nibble_value(sent.codes[i], 120)) std::abort();
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return static_cast<double>(4 * sent.indices.size()) / seconds[kRounds / 2] / 1e9;
}

void run() {
  fmt::print("{:>10} {:>8} {:>14} {:>14}\n", "elements", "sent", "words GB/s", "compact GB/s");
  for (const std::size_t elements : {std::size_t{1'000'000}, std::size_t{25'600'000}}) {
    std::vector<float> sum(elements);
    for (const double density : {0.002, 0.01, 0.05, 0.2}) {
      const VarianceSent sent = random_sent(elements, density);
      fmt::print("{:>10} {:>7.1f}% {:>14.2f} {:>14.2f}\n", elements, density * 100,
                 gbps(VarianceFormat::Places::words, sent, sum),
                 gbps(VarianceFormat::Places::compact, sent, sum));
    }
  }
}

}  // namespace
}  // namespace thinreduce

int main() {
  thinreduce::run();
  return 0;
}
