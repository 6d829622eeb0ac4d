#include "thinreduce/methods/fft/pair_selector.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/bit_loops.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/kernels/select.h"

namespace thinreduce::kernels {
namespace {

// Relative error allowed for the sample's count. Blocks differ, and the sample has only some of
// them: where rows of 1024 floats differ eightfold in magnitude, one group in 32 of 100 MB should
// have a standard deviation of about 5 % (estimated). Too small a margin only costs a second pass.
constexpr double kMargin = 0.2;
// Words per run: their spectrum, 16 KiB, stays in the L1 cache.
constexpr std::size_t kRun = 32;

// Returns a factor that brings `largest` near 1, so that squares neither overflow nor vanish.
float power_of_two_below(float largest) {
  if (largest == 0 || !std::isfinite(largest)) return 1;
  return std::ldexp(1.0f, std::clamp(-std::ilogb(largest), -126, 126));
}

}  // namespace

Thresholds PairSelector::guess(std::span<const float> sample, double fraction) {
  Thresholds thresholds;
  if (sample.empty()) return thresholds;
  thresholds.scale = power_of_two_below(largest_magnitude(sample));
  energies_.resize(std::max(energies_.size(), sample.size() / 2));
  const auto energies = std::span(energies_).first(sample.size() / 2);
  for (std::size_t pair = 0; pair < energies.size(); ++pair) {
    energies[pair] = pair_energy(sample, pair, thresholds.scale);
  }
  const double expected = fraction * static_cast<double>(energies.size());
  const auto position_low = static_cast<std::size_t>(expected * (1 + kMargin));
  const auto position_high = static_cast<std::size_t>(expected * (1 - kMargin));
  if (position_low >= 1 && position_low < energies.size()) {
    thresholds.low = std::max(kth_largest(energies, position_low).magnitude, 1u);
  }
  if (position_high >= 1) {
    thresholds.high = std::max(kth_largest(energies, position_high).magnitude + 1, thresholds.low);
  }
  return thresholds;
}

void PairSelector::start(const Thresholds& thresholds, std::span<std::uint64_t> bitmap) {
  ensure(bitmap.size() <= std::numeric_limits<std::uint32_t>::max() / kPairsPerWord,
         "select: indices must fit in 32 bits", bitmap.size());
  thresholds_ = thresholds;
  bitmap_ = bitmap;
  words_ = collected_ = 0;
  energy_ = 0;
  betweens_ = 0;
}

// Has no branches that depend on which pairs are selected: they would be mispredicted too often.
void PairSelector::add(std::span<const float> part) {
  std::array<std::uint64_t, kRun> above{};
  std::array<std::uint16_t, kRun * kPairsPerWord + kListSlack> list;
  const std::size_t all = part.size() / 128;
  ensure(part.size() % 128 == 0 && words_ + all <= bitmap_.size(), "select: no more than announced",
         part.size(), words_, bitmap_.size());
  for (std::size_t first = 0; first < all; first += kRun) {
    const std::size_t length = std::min(kRun, all - first);
    const auto spectrum = part.subspan(first * 128, length * 128);
    const auto marked = bitmap_.subspan(words_, length);
    const auto high = std::span(above).first(length);
    energy_ += mark(spectrum, thresholds_, marked, high);
    make_room(spectrum.size() / 2);
    const std::size_t count = list_bits(marked, list);
    const auto first_pair = static_cast<std::uint32_t>(words_ * kPairsPerWord);
    float* values = &values_[2 * collected_];
    for (std::size_t i = 0; i < count; ++i) {
      const unsigned pair = list[i];
      const std::size_t at = pair_offset(pair);
      values[2 * i] = spectrum[at];
      values[2 * i + 1] = spectrum[at + 16];
      between_[betweens_] = {first_pair + pair, static_cast<std::uint32_t>(collected_ + i)};
      energies_[betweens_] = pair_energy(spectrum, pair, thresholds_.scale);
      betweens_ += (~high[pair / kPairsPerWord] >> (pair % kPairsPerWord)) & 1;
    }
    collected_ += count;
    words_ += length;
  }
}

// Makes room for `pairs` more pairs, and for one that is written but not counted.
void PairSelector::make_room(std::size_t pairs) {
  if (values_.size() < 2 * (collected_ + pairs)) {
    values_.resize(std::max(2 * values_.size(), 2 * (collected_ + pairs)));
  }
  if (between_.size() < betweens_ + pairs + 1) {
    between_.resize(std::max(2 * between_.size(), betweens_ + pairs + 1));
  }
  energies_.resize(std::max(energies_.size(), between_.size()));
}

bool PairSelector::can_find(std::size_t k) const {
  const std::size_t above = collected_ - betweens_;
  return above <= k && (collected_ >= k || thresholds_.low == 1);
}

PairSelector::Result PairSelector::finish(std::size_t k) {
  ensure(words_ == bitmap_.size() && can_find(k), "select: a whole spectrum with k pairs", words_,
         bitmap_.size(), k);
  if (collected_ > k) {
    const std::size_t wanted = k - (collected_ - betweens_);  // among those between the thresholds
    KthLargest last{std::numeric_limits<std::uint32_t>::max(), 0};
    if (wanted > 0) last = kth_largest(std::span(energies_).first(betweens_), wanted);
    stays_.assign(collected_, 1);
    for (std::size_t i = 0; i < betweens_; ++i) {
      const std::uint32_t bits = magnitude(energies_[i]);
      const bool tie = bits == last.magnitude && last.ties > 0;
      last.ties -= static_cast<std::size_t>(tie);
      const bool stays = bits > last.magnitude || tie;
      const auto [pair, ordinal] = between_[i];
      bitmap_[pair / kPairsPerWord] &= ~(std::uint64_t{!stays} << (pair % kPairsPerWord));
      stays_[ordinal] = static_cast<std::uint8_t>(stays);
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < collected_; ++i) {
      values_[2 * kept] = values_[2 * i];
      values_[2 * kept + 1] = values_[2 * i + 1];
      kept += stays_[i];
    }
    collected_ = kept;
  }
  return {std::span(values_).first(2 * collected_), energy_, thresholds_.scale};
}

}  // namespace thinreduce::kernels
