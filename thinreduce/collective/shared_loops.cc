#include "thinreduce/collective/shared_loops.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "thinreduce/ensure.h"

namespace thinreduce {

std::size_t first_nonfinite(Workers workers, std::span<const float> values) {
  std::atomic<std::size_t> found = values.size();
  for_floats(workers, values.size(), [&](std::size_t first, std::size_t count) {
    if (found.load(std::memory_order_relaxed) < first) return;
    const std::size_t bad = kernels::first_nonfinite(values.subspan(first, count));
    if (bad == count) return;
    std::size_t before = found;
    while (first + bad < before && !found.compare_exchange_weak(before, first + bad)) {
    }
  });
  return found;
}

namespace {

// Adds in eight sums, element by element in turn, so that the order does not depend on the width of
// vectors.
double sum_of_squares(std::span<const float> values) {
  std::array<double, 8> sums{};
  const std::size_t whole = values.size() / sums.size() * sums.size();
  for (std::size_t i = 0; i < whole; i += sums.size()) {
    for (std::size_t k = 0; k < sums.size(); ++k) {
      const auto value = static_cast<double>(values[i + k]);
      sums[k] += value * value;
    }
  }
  for (std::size_t i = whole; i < values.size(); ++i) {
    sums[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

float norm(Workers workers, std::span<const float> values) {
  std::vector<double> blocks((values.size() + kFloatsPerBlock - 1) / kFloatsPerBlock);
  workers.for_blocks(blocks.size(), [&](std::size_t block, std::size_t /*thread*/) {
    const std::size_t first = block * kFloatsPerBlock;
    blocks[block] =
        sum_of_squares(values.subspan(first, std::min(kFloatsPerBlock, values.size() - first)));
  });
  const double result = std::sqrt(std::accumulate(blocks.begin(), blocks.end(), 0.0));
  return static_cast<float>(std::min<double>(result, std::numeric_limits<float>::max()));
}

float largest_magnitude(Workers workers, std::span<const float> values) {
  std::vector<float> largest(workers.threads());
  workers.for_runs(values.size(), kFloatsPerBlock,
                   [&](std::size_t first, std::size_t count, std::size_t thread) {
                     largest[thread] = std::max(
                         largest[thread], kernels::largest_magnitude(values.subspan(first, count)));
                   });
  return std::ranges::max(largest);
}

kernels::KthLargest kth_largest(Workers workers, std::span<const std::span<const float>> parts,
                                std::size_t k) {
  std::size_t values = 0;
  for (const auto part : parts) values += part.size();
  ensure(k >= 1 && k <= values, "kth_largest: k must be from 1 to the number of values", k, values);
  std::vector<kernels::DigitCounts> own(workers.threads());
  return kernels::find_kth_largest(
      k, [&](const kernels::Digit& digit, kernels::DigitCounts& counts) {
        for (auto& thread_counts : own) thread_counts.fill(0);
        workers.for_blocks(parts.size(), [&](std::size_t part, std::size_t thread) {
          kernels::count_digits(parts[part], digit, own[thread]);
        });
        for (const auto& thread_counts : own) {
          for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += thread_counts[i];
        }
      });
}

}  // namespace thinreduce
