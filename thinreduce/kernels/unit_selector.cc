#include "thinreduce/kernels/unit_selector.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "thinreduce/error.h"
#include "thinreduce/kernels/select.h"

namespace thinreduce::kernels {
namespace {

// How far the sample's count may be off. Blocks differ, and the sample has only some of them: where
// rows of 1024 floats differ eightfold in magnitude, one group in 32 of 100 MB should have a
// standard deviation of about 5 % (estimated). Too small a margin costs a second pass, no more.
constexpr double kMargin = 0.2;
// Words of a bitmap that are looked at together: their spectrum, 16 KiB, stays in the L1 cache.
constexpr std::size_t kRun = 32;

// Brings the largest of the sample near 1, so that squares neither overflow nor vanish.
float power_of_two_below(float largest) {
  if (largest == 0 || !std::isfinite(largest)) return 1;
  return std::ldexp(1.0f, std::clamp(-std::ilogb(largest), -126, 126));
}

}  // namespace

Thresholds UnitSelector::guess(std::span<const float> sample, double share) {
  Thresholds thresholds;
  if (sample.empty()) return thresholds;
  float largest = 0;
  for (const float value : sample) largest = std::max(largest, std::abs(value));
  thresholds.scale = power_of_two_below(largest);
  energies_.resize(sample.size() / 2);
  for (std::size_t unit = 0; unit < energies_.size(); ++unit) {
    energies_[unit] = unit_energy(sample, unit, thresholds.scale);
  }
  const double expected = share * static_cast<double>(energies_.size());
  const auto rank_low = static_cast<std::size_t>(expected * (1 + kMargin));
  const auto rank_high = static_cast<std::size_t>(expected * (1 - kMargin));
  if (rank_low >= 1 && rank_low < energies_.size()) {
    thresholds.low = std::max(kth_largest(energies_, rank_low).magnitude, 1u);
  }
  if (rank_high >= 1) {
    thresholds.high = std::max(kth_largest(energies_, rank_high).magnitude + 1, thresholds.low);
  }
  return thresholds;
}

void UnitSelector::start(const Thresholds& thresholds, std::span<std::uint64_t> bitmap) {
  ensure(bitmap.size() <= std::numeric_limits<std::uint32_t>::max() / kUnitsPerWord,
         "select: indices of 32 bits");
  thresholds_ = thresholds;
  bitmap_ = bitmap;
  words_ = collected_ = 0;
  energy_ = 0;
  units_.clear();
  ordinals_.clear();
  energies_.clear();
}

void UnitSelector::add(std::span<const float> part) {
  std::array<std::uint64_t, kRun> above{};
  const std::size_t all = part.size() / 128;
  ensure(part.size() % 128 == 0 && words_ + all <= bitmap_.size(),
         "select: no more than announced");
  for (std::size_t first = 0; first < all; first += kRun) {
    const std::size_t length = std::min(kRun, all - first);
    const auto spectrum = part.subspan(first * 128, length * 128);
    const auto marked = bitmap_.subspan(words_, length);
    const auto high = std::span(above).first(length);
    energy_ += mark(spectrum, thresholds_, marked, high);
    if (values_.size() < 2 * collected_ + spectrum.size()) {
      values_.resize(std::max(2 * values_.size(), 2 * collected_ + spectrum.size()));
    }
    for (std::size_t word = 0; word < length; ++word) {
      for (std::uint64_t left = marked[word] & ~high[word]; left != 0; left &= left - 1) {
        const auto bit = static_cast<std::size_t>(std::countr_zero(left));
        const std::uint64_t before = marked[word] & ((left & -left) - 1);
        units_.push_back(static_cast<std::uint32_t>((words_ + word) * kUnitsPerWord + bit));
        ordinals_.push_back(static_cast<std::uint32_t>(
            collected_ + static_cast<std::size_t>(std::popcount(before))));
        energies_.push_back(unit_energy(spectrum, word * kUnitsPerWord + bit, thresholds_.scale));
      }
      float* next = &values_[2 * collected_];
      for (std::uint64_t left = marked[word]; left != 0; left &= left - 1) {
        const std::size_t at =
            place_of_unit(word * kUnitsPerWord + static_cast<std::size_t>(std::countr_zero(left)));
        next[0] = spectrum[at];
        next[1] = spectrum[at + 16];
        next += 2;
      }
      collected_ += static_cast<std::size_t>(std::popcount(marked[word]));
    }
    words_ += length;
  }
}

bool UnitSelector::can_find(std::size_t k) const {
  const std::size_t above = collected_ - energies_.size();
  return above <= k && (collected_ >= k || thresholds_.low == 1);
}

UnitSelector::Result UnitSelector::finish(std::size_t k) {
  ensure(words_ == bitmap_.size() && can_find(k), "select: a whole spectrum, and k units in it");
  if (collected_ > k) {
    const std::size_t wanted = k - (collected_ - energies_.size());  // of those between
    KthLargest last{std::numeric_limits<std::uint32_t>::max(), 0};
    if (wanted > 0) last = kth_largest(energies_, wanted);
    std::size_t kept = 0;  // units, so far
    std::size_t next = 0;  // the first collected unit that has not been moved
    // A loop, because a few units at a time are too little for a call of memmove.
    const auto move_up_to = [&](std::size_t end) {
      for (; next < end; ++next, ++kept) {
        values_[2 * kept] = values_[2 * next];
        values_[2 * kept + 1] = values_[2 * next + 1];
      }
    };
    for (std::size_t i = 0; i < energies_.size(); ++i) {
      const std::uint32_t bits = magnitude(energies_[i]);
      const bool tie = bits == last.magnitude && last.ties > 0;
      last.ties -= static_cast<std::size_t>(tie);
      if (bits > last.magnitude || tie) continue;
      bitmap_[units_[i] / kUnitsPerWord] &= ~(std::uint64_t{1} << (units_[i] % kUnitsPerWord));
      move_up_to(ordinals_[i]);
      next = ordinals_[i] + 1;
    }
    move_up_to(collected_);
    collected_ = kept;
  }
  return {std::span(values_).first(2 * collected_), energy_, thresholds_.scale};
}

}  // namespace thinreduce::kernels
