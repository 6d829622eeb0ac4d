#include "thinreduce/methods/fft/pair_selector.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "thinreduce/collective/shared_loops.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/bit_loops.h"

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

// Counts energies in bins of 1/64 octave, from the largest that can occur with this scale down. Two
// tables, because an increment of the count that was just incremented would have to wait for it.
Thresholds PairSelector::guess(std::span<const float> sample, double fraction) {
  Thresholds thresholds;
  if (sample.empty()) return thresholds;
  thresholds.scale = power_of_two_below(largest_magnitude(sample));
  constexpr unsigned kShift = 17;
  constexpr std::size_t kBins = 2048;
  const std::uint32_t first = (magnitude(16.0f) >> kShift) - kBins;  // the lowest bin
  std::array<std::array<std::uint32_t, kBins>, 2> counts{};
  const std::size_t pairs = sample.size() / 2;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const std::uint32_t bits = magnitude(pair_energy(sample, pair, thresholds.scale)) >> kShift;
    ++counts[pair % 2][std::clamp(bits, first, first + std::uint32_t{kBins - 1}) - first];
  }
  const double expected = fraction * static_cast<double>(pairs);
  const auto position_low = static_cast<std::size_t>(expected * (1 + kMargin));
  const auto position_high = static_cast<std::size_t>(expected * (1 - kMargin));
  bool found_high = position_high == 0;
  std::size_t passed = 0;
  for (std::size_t bin = kBins - 1; bin > 0; --bin) {
    passed += counts[0][bin] + counts[1][bin];
    const std::uint32_t bits = first + static_cast<std::uint32_t>(bin);
    if (!found_high && passed >= position_high) {
      found_high = true;
      thresholds.high = (bits + 1) << kShift;
    }
    if (position_low >= 1 && passed >= position_low) {
      thresholds.low = bits << kShift;
      break;
    }
  }
  // Below the lowest bin nothing is known.
  if (!found_high) thresholds.high = (first + 1) << kShift;
  return thresholds;
}

void PairSelector::start(const Thresholds& thresholds, std::span<std::uint64_t> bitmap,
                         std::span<const std::size_t> first_words) {
  ensure(bitmap.size() <= std::numeric_limits<std::uint32_t>::max() / kPairsPerWord,
         "select: indices must fit in 32 bits", bitmap.size());
  thresholds_ = thresholds;
  bitmap_ = bitmap;
  first_words_.assign(first_words.begin(), first_words.end());
  if (first_words_.empty()) first_words_.push_back(0);
  stretches_.resize(first_words_.size());
  first_words_.push_back(bitmap.size());
  for (std::size_t s = 0; s < stretches_.size(); ++s) {
    Stretch& stretch = stretches_[s];
    stretch.words = first_words_[s];
    stretch.collected = stretch.betweens = 0;
    stretch.run_sums.clear();
  }
}

// Has no branches that depend on which pairs are selected: they would be mispredicted too often.
void PairSelector::add(std::span<const float> part, std::size_t index) {
  Stretch& stretch = stretches_.at(index);
  std::array<std::uint64_t, kRun> above{};
  std::array<std::uint16_t, kRun * kPairsPerWord + kListSlack> list;
  const std::size_t all = part.size() / 128;
  ensure(part.size() % 128 == 0 && stretch.words + all <= first_words_[index + 1],
         "select: no more than announced", part.size(), stretch.words, first_words_[index + 1]);
  for (std::size_t first = 0; first < all; first += kRun) {
    const std::size_t length = std::min(kRun, all - first);
    const auto spectrum = part.subspan(first * 128, length * 128);
    const auto marked = bitmap_.subspan(stretch.words, length);
    const auto high = std::span(above).first(length);
    stretch.run_sums.push_back(mark(spectrum, thresholds_, marked, high));
    stretch.make_room(spectrum.size() / 2);
    const std::size_t count = list_bits(marked, list);
    const auto first_pair = static_cast<std::uint32_t>(stretch.words * kPairsPerWord);
    const auto collected = static_cast<std::uint32_t>(stretch.collected);
    float* const values = &stretch.values[2 * stretch.collected];
    Between* const between = stretch.between.data();
    float* const energies = stretch.energies.data();
    std::size_t betweens = stretch.betweens;
    for (std::size_t i = 0; i < count; ++i) {
      const unsigned pair = list[i];
      const std::size_t at = pair_offset(pair);
      values[2 * i] = spectrum[at];
      values[2 * i + 1] = spectrum[at + 16];
      between[betweens] = {first_pair + pair, collected + static_cast<std::uint32_t>(i)};
      energies[betweens] = pair_energy(spectrum, pair, thresholds_.scale);
      betweens += (~high[pair / kPairsPerWord] >> (pair % kPairsPerWord)) & 1;
    }
    stretch.betweens = betweens;
    stretch.collected += count;
    stretch.words += length;
  }
}

// Makes room for `pairs` more pairs, and for one that is written but not counted.
void PairSelector::Stretch::make_room(std::size_t pairs) {
  if (values.size() < 2 * (collected + pairs)) {
    values.resize(std::max(2 * values.size(), 2 * (collected + pairs)));
  }
  if (between.size() < betweens + pairs + 1) {
    between.resize(std::max(2 * between.size(), betweens + pairs + 1));
  }
  energies.resize(std::max(energies.size(), between.size()));
}

bool PairSelector::can_find(std::size_t k) const {
  std::size_t collected = 0;
  std::size_t above = 0;
  for (const Stretch& stretch : stretches_) {
    collected += stretch.collected;
    above += stretch.collected - stretch.betweens;
  }
  return above <= k && (collected >= k || thresholds_.low == 1);
}

PairSelector::Result PairSelector::finish(std::size_t k, Workers workers) {
  std::size_t collected = 0;
  std::size_t betweens = 0;
  Result result{.values = {}, .energy = 0, .scale = thresholds_.scale};
  for (std::size_t s = 0; s < stretches_.size(); ++s) {
    const Stretch& stretch = stretches_[s];
    ensure(stretch.words == first_words_[s + 1], "select: a whole spectrum", stretch.words,
           first_words_[s + 1]);
    collected += stretch.collected;
    betweens += stretch.betweens;
    for (const double sum : stretch.run_sums) result.energy += sum;
  }
  ensure(can_find(k), "select: a spectrum with k pairs", k);
  // Everything stays unless there is more than enough.
  KthLargest last{0, std::numeric_limits<std::size_t>::max()};
  if (collected > k) last = last_between(k - (collected - betweens), workers);
  workers.for_blocks(stretches_.size(), [&](std::size_t s, std::size_t /*thread*/) {
    count_kept(stretches_[s], last.magnitude);
  });
  std::size_t kept = 0;
  for (Stretch& stretch : stretches_) {
    stretch.ties = std::min(stretch.ties, last.ties);
    last.ties -= stretch.ties;
    stretch.kept += stretch.ties;
    stretch.begin = kept;
    kept += stretch.kept;
  }
  values_.resize(std::max(values_.size(), 2 * kept));
  workers.for_blocks(stretches_.size(), [&](std::size_t s, std::size_t /*thread*/) {
    keep(stretches_[s], {last.magnitude, stretches_[s].ties});
  });
  result.values = std::span(values_).first(2 * kept);
  return result;
}

// Returns the wanted-th largest energy between the thresholds.
KthLargest PairSelector::last_between(std::size_t wanted, Workers workers) const {
  if (wanted == 0) return {std::numeric_limits<std::uint32_t>::max(), 0};
  std::vector<std::span<const float>> energies;
  for (const Stretch& stretch : stretches_) {
    energies.push_back(std::span(stretch.energies).first(stretch.betweens));
  }
  return thinreduce::kth_largest(workers, energies, wanted);
}

void PairSelector::count_kept(Stretch& stretch, std::uint32_t last) {
  stretch.kept = stretch.collected - stretch.betweens;
  stretch.ties = 0;
  for (const float energy : std::span(stretch.energies).first(stretch.betweens)) {
    stretch.kept += static_cast<std::size_t>(magnitude(energy) > last);
    stretch.ties += static_cast<std::size_t>(magnitude(energy) == last);
  }
}

// Moves the values of the selected pairs to their place and clears the others in the bitmap.
void PairSelector::keep(Stretch& stretch, KthLargest last) {
  stretch.stays.assign(stretch.collected, 1);
  for (std::size_t i = 0; i < stretch.betweens; ++i) {
    const std::uint32_t bits = magnitude(stretch.energies[i]);
    const bool tie = bits == last.magnitude && last.ties > 0;
    last.ties -= static_cast<std::size_t>(tie);
    const bool stays = bits > last.magnitude || tie;
    const auto [pair, ordinal] = stretch.between[i];
    bitmap_[pair / kPairsPerWord] &= ~(std::uint64_t{!stays} << (pair % kPairsPerWord));
    stretch.stays[ordinal] = static_cast<std::uint8_t>(stays);
  }
  float* const values = values_.data() + 2 * stretch.begin;
  std::size_t kept = 0;
  for (std::size_t i = 0; kept < stretch.kept; ++i) {
    std::memcpy(values + 2 * kept, &stretch.values[2 * i], 2 * sizeof(float));
    kept += stretch.stays[i];
  }
}

}  // namespace thinreduce::kernels
