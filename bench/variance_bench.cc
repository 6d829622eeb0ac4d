// Speed at which a rank decodes and adds the payloads of four ranks of the method `variance`, in
// GB/s of words: 4 bytes per value, also for the compact form, which is smaller. The sum starts
// from zeros that the same pass writes; the time to write zeros alone is subtracted, and shown.
// Medians of several rounds, zeros and sums in turn.
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

#include "thinreduce/methods/variance/payload.h"

namespace thinreduce {
namespace {

VarianceSent random_sent(std::size_t elements, double density, unsigned seed) {
  std::mt19937 random(seed);
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

constexpr unsigned kRanks = 4;
constexpr std::size_t kRounds = 15;

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + kRounds / 2, values.end());
  return values[kRounds / 2];
}

template <typename Work>
double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Speed {
  double gbps = 0;
  double milliseconds = 0;  // to write zeros and add all ranks' values
  double zeros = 0;         // milliseconds to write zeros alone
};

Speed speed(VarianceFormat::Index index, std::span<const VarianceSent> sent, std::span<float> sum) {
  const VariancePayload codec({.index = index}, {{0, sum.size()}});
  std::vector<std::vector<std::byte>> bytes(sent.size());
  std::vector<std::span<const std::byte>> payloads;
  std::size_t values = 0;
  for (std::size_t rank = 0; rank < sent.size(); ++rank) {
    codec.write(sent[rank], bytes[rank]);
    payloads.emplace_back(bytes[rank]);
    values += sent[rank].indices.size();
  }
  std::vector<double> zeros;
  std::vector<double> added;
  for (std::size_t round = 0; round < kRounds; ++round) {
    zeros.push_back(seconds_of([&] { std::fill(sum.begin(), sum.end(), 0.0F); }));
    added.push_back(seconds_of([&] { codec.add_up(payloads, 1.0F, sum); }));
  }
  // Checks the sum.
  for (const VarianceSent& one : sent) {
    for (std::size_t i = 0; i < one.indices.size(); ++i) {
      sum[one.indices[i]] -= nibble_value(one.codes[i], 120);
    }
  }
  // Powers of two of the same size add without rounding.
  if (std::any_of(sum.begin(), sum.end(), [](float rest) { return rest != 0; })) std::abort();
  const double alone = median(zeros);
  const double all = median(added);
  return {static_cast<double>(4 * values) / (all - alone) / 1e9, all * 1e3, alone * 1e3};
}

// A sum on pages of 4 KiB, the default, or of 2 MiB if the system has such pages.
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
  fmt::print("{:>10} {:>6} {:>6} {:>9} {:>11} {:>9} {:>13} {:>11}\n", "elements", "pages", "sent",
             "zeros ms", "words GB/s", "all ms", "compact GB/s", "all ms");
  for (const std::size_t elements : {std::size_t{1'000'000}, std::size_t{25'600'000}}) {
    for (const Pages pages : {Pages::small, Pages::huge}) {
      const Sum sum(elements, pages);
      for (const double density : {0.002, 0.01, 0.05, 0.2}) {
        std::vector<VarianceSent> sent;
        for (unsigned rank = 0; rank < kRanks; ++rank) {
          sent.push_back(random_sent(elements, density, rank));
        }
        const Speed words = speed(VarianceFormat::Index::words, sent, sum.span());
        const Speed compact = speed(VarianceFormat::Index::compact, sent, sum.span());
        fmt::print("{:>10} {:>6} {:>5.1f}% {:>9.2f} {:>11.2f} {:>9.2f} {:>13.2f} {:>11.2f}\n",
                   elements, pages == Pages::huge ? "2 MiB" : "4 KiB", density * 100, words.zeros,
                   words.gbps, words.milliseconds, compact.gbps, compact.milliseconds);
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
