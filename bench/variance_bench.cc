// How fast a rank decodes and adds what the others send by the method `variance`, in GB/s of words:
// 4 bytes for each value, in the compact form as well, which has fewer. Median of several rounds.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <span>
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
double gbps(VarianceFormat::Places places, const VarianceSent& sent, std::span<float> sum) {
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

// A sum on pages of 4 KiB, as programs get memory, or of 2 MiB where the system has them to give.
enum class Pages { small, huge };
class Sum {
 public:
  Sum(std::size_t elements, Pages pages)
      : elements_(elements),
        memory_(static_cast<float*>(std::aligned_alloc(
            kHugePage, (elements * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage))) {
    if (memory_ == nullptr) throw std::bad_alloc();
    madvise(memory_.get(), elements * sizeof(float),
            pages == Pages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }
  [[nodiscard]] std::span<float> span() const { return {memory_.get(), elements_}; }

 private:
  static constexpr std::size_t kHugePage = std::size_t{1} << 21U;
  struct Free {
    void operator()(float* memory) const { std::free(memory); }  // NOLINT(*-no-malloc)
  };
  std::size_t elements_;
  std::unique_ptr<float, Free> memory_;
};

void run() {
  fmt::print("{:>10} {:>6} {:>8} {:>14} {:>14}\n", "elements", "pages", "sent", "words GB/s",
             "compact GB/s");
  for (const std::size_t elements : {std::size_t{1'000'000}, std::size_t{25'600'000}}) {
    for (const Pages pages : {Pages::small, Pages::huge}) {
      const Sum sum(elements, pages);
      for (const double density : {0.002, 0.01, 0.05, 0.2}) {
        const VarianceSent sent = random_sent(elements, density);
        fmt::print("{:>10} {:>6} {:>7.1f}% {:>14.2f} {:>14.2f}\n", elements,
                   pages == Pages::huge ? "2 MiB" : "4 KiB", density * 100,
                   gbps(VarianceFormat::Places::words, sent, sum.span()),
                   gbps(VarianceFormat::Places::compact, sent, sum.span()));
      }
    }
  }
}

}  // namespace
}  // namespace thinreduce

int main() {
  thinreduce::run();
  return 0;
}
