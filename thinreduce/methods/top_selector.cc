#include "thinreduce/methods/top_selector.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce::kernels {
namespace {

// Elements per run: a run and its candidates fit into the L2 cache.
constexpr std::size_t kRun = 65536;
// Sample size of the guess: at 1 % about 164 of them are above the true k-th magnitude. A larger
// sample would save needless candidates, but costs a cache miss per element.
constexpr std::size_t kSample = 16384;
// The guess is this many standard deviations of that count too low: a second pass is needed once in
// 10^9 calls.
constexpr double kDeviations = 6;
constexpr std::uint32_t kAnyNonZero = 1;

}  // namespace

void TopSelector::prepare(std::size_t elements, std::size_t k) {
  ensure(elements <= std::numeric_limits<std::uint32_t>::max(),
         "select: indices must fit in 32 bits", elements);
  const std::size_t room = std::min(elements, 2 * std::min(k, elements) + kRun);
  if (indices_.size() < room) {
    indices_.resize(room);
    values_.resize(room);
  }
  count_ = 0;
}

// Guesses a threshold from a sample: one element at a pseudo-random position in each of kSample
// equal stretches, so that no period of the data can line up with it.
template <typename ValueAt>
std::uint32_t TopSelector::guess(std::size_t elements, std::size_t k, ValueAt&& value_at) {
  if (elements < 4 * kSample) return kAnyNonZero;
  const double expected = static_cast<double>(k) / static_cast<double>(elements) * kSample;
  const auto wanted = static_cast<std::size_t>(expected + kDeviations * (std::sqrt(expected) + 1));
  if (wanted >= kSample) return kAnyNonZero;
  const std::size_t stretch = elements / kSample;
  sample_.resize(kSample);
  std::uint32_t random = 1;
  for (std::size_t i = 0; i < kSample; ++i) {
    random = random * 1664525 + 1013904223;
    sample_[i] = value_at(i * stretch + (random >> 8) % stretch);
  }
  return std::max(kth_largest(sample_, wanted).magnitude, kAnyNonZero);
}

template <typename Collect>
void TopSelector::pass(std::size_t elements, std::size_t k, std::uint32_t threshold,
                       Collect&& collect_run) {
  for (std::size_t first = 0; first < elements; first += kRun) {
    const std::size_t length = std::min(kRun, elements - first);
    if (count_ + length > indices_.size()) threshold = std::max(threshold, cut(k) + 1);
    count_ += collect_run(
        first, length, threshold,
        Candidates{std::span(indices_).subspan(count_), std::span(values_).subspan(count_)});
  }
}

// Keeps the best k candidates in order and returns the smallest magnitude among them.
std::uint32_t TopSelector::cut(std::size_t k) {
  auto [last, ties] = kth_largest(std::span(values_).first(count_), k);
  std::size_t kept = 0;
  // Has no branches: whether an element stays is unpredictable.
  for (std::size_t i = 0; i < count_; ++i) {
    const std::uint32_t bits = magnitude(values_[i]);
    const bool tie = bits == last && ties > 0;
    indices_[kept] = indices_[i];
    values_[kept] = values_[i];
    kept += static_cast<std::size_t>((bits > last) | tie);
    ties -= static_cast<std::size_t>(tie);
  }
  count_ = kept;
  return last;
}

Selected TopSelector::result(std::span<const float> values, std::size_t k, std::uint32_t guessed) {
  if (count_ < k && guessed > kAnyNonZero) {
    count_ = 0;
    pass(values.size(), k, kAnyNonZero,
         [&](std::size_t first, std::size_t length, std::uint32_t threshold, Candidates out) {
           return collect(values.subspan(first, length), static_cast<std::uint32_t>(first),
                          threshold, out);
         });
  }
  if (count_ > k) cut(k);
  return {std::span(indices_).first(count_), std::span(values_).first(count_)};
}

Selected TopSelector::select(std::span<const float> values, std::size_t k) {
  prepare(values.size(), k);
  if (k == 0) return {};
  const std::uint32_t guessed = guess(values.size(), k, [&](std::size_t i) { return values[i]; });
  pass(values.size(), k, guessed,
       [&](std::size_t first, std::size_t length, std::uint32_t threshold, Candidates out) {
         return collect(values.subspan(first, length), static_cast<std::uint32_t>(first), threshold,
                        out);
       });
  return result(values, k, guessed);
}

Selected TopSelector::add_select(std::span<float> values, std::span<const float> addend,
                                 std::size_t k) {
  ensure(values.size() == addend.size(), "add_select: spans must have the same length",
         values.size(), addend.size());
  prepare(values.size(), k);
  if (k == 0) {
    add(values, addend);
    return {};
  }
  const std::uint32_t guessed =
      guess(values.size(), k, [&](std::size_t i) { return values[i] + addend[i]; });
  pass(values.size(), k, guessed,
       [&](std::size_t first, std::size_t length, std::uint32_t threshold, Candidates out) {
         return add_collect(values.subspan(first, length), addend.subspan(first, length),
                            static_cast<std::uint32_t>(first), threshold, out);
       });
  return result(values, k, guessed);
}

}  // namespace thinreduce::kernels
