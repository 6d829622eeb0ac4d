#include "thinreduce/kernels/unit_selector.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "thinreduce/error.h"
#include "thinreduce/kernels/select.h"

namespace thinreduce::kernels {
namespace {

constexpr std::size_t kSample = 16384;
// The thresholds are this many standard deviations of the sample's count to both sides: a second
// pass because of bad luck happens once in 10^9 calls.
constexpr double kDeviations = 6;
// Words of a bitmap that are looked at together: their spectrum, 16 KiB, stays in the L1 cache.
constexpr std::size_t kRun = 32;

// Brings the largest of the sample near 1, so that squares neither overflow nor vanish.
float power_of_two_below(float largest) {
  if (largest == 0) return 1;
  return std::ldexp(1.0f, std::clamp(-std::ilogb(largest), -126, 126));
}

}  // namespace

// Of a sample, one unit at a pseudo-random place in each of kSample equal stretches, so that no
// period of the data can line up with it.
Thresholds UnitSelector::guess(std::span<const float> spectrum, std::size_t k) {
  const std::size_t units = spectrum.size() / 2;
  const std::size_t count = std::min(units, kSample);
  const std::size_t stretch = units / count;
  std::vector<std::uint32_t>& places = indices_;
  places.resize(count);
  std::uint32_t random = 1;
  float largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    random = random * 1664525 + 1013904223;
    places[i] = static_cast<std::uint32_t>(i * stretch + (random >> 8) % stretch);
    const std::size_t at = place_of_unit(places[i]);
    largest = std::max({largest, std::abs(spectrum[at]), std::abs(spectrum[at + 16])});
  }
  Thresholds thresholds;
  thresholds.scale = power_of_two_below(largest);
  if (units < 4 * kSample) return thresholds;
  sample_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    sample_[i] = unit_energy(spectrum, places[i], thresholds.scale);
  }
  const double expected =
      static_cast<double>(k) / static_cast<double>(units) * static_cast<double>(count);
  const double margin = kDeviations * (std::sqrt(expected) + 1);
  const auto rank_low = static_cast<std::size_t>(expected + margin);
  if (rank_low < count) thresholds.low = std::max(kth_largest(sample_, rank_low).magnitude, 1u);
  if (expected - margin >= 1) {
    const auto rank_high = static_cast<std::size_t>(expected - margin);
    thresholds.high = std::max(kth_largest(sample_, rank_high).magnitude + 1, thresholds.low);
  }
  return thresholds;
}

// Leaves in the bitmap what reaches the lower threshold.
void UnitSelector::pass(std::span<const float> spectrum, const Thresholds& thresholds,
                        std::span<std::uint64_t> bitmap) {
  energy_ = 0;
  above_ = 0;
  indices_.clear();
  energies_.clear();
  std::array<std::uint64_t, kRun> above{};
  for (std::size_t first = 0; first < bitmap.size(); first += kRun) {
    const std::size_t length = std::min(kRun, bitmap.size() - first);
    const auto part = spectrum.subspan(first * 128, length * 128);
    const auto marked = bitmap.subspan(first, length);
    const auto high = std::span(above).first(length);
    energy_ += mark(part, thresholds, marked, high);
    for (std::size_t i = 0; i < length; ++i) {
      above_ += static_cast<std::size_t>(std::popcount(high[i]));
      for (std::uint64_t left = marked[i] & ~high[i]; left != 0; left &= left - 1) {
        const std::size_t unit =
            i * kUnitsPerWord + static_cast<std::size_t>(std::countr_zero(left));
        indices_.push_back(static_cast<std::uint32_t>(first * kUnitsPerWord + unit));
        energies_.push_back(unit_energy(part, unit, thresholds.scale));
      }
    }
  }
}

UnitSelector::Result UnitSelector::select(std::span<const float> spectrum, std::size_t k,
                                          std::span<std::uint64_t> bitmap) {
  ensure(spectrum.size() == bitmap.size() * 128, "select: 128 floats a word of the bitmap");
  ensure(spectrum.size() / 2 <= std::numeric_limits<std::uint32_t>::max(),
         "select: indices of 32 bits");
  if (bitmap.empty()) return {};
  Thresholds thresholds = guess(spectrum, k);
  pass(spectrum, thresholds, bitmap);
  const bool too_many = above_ > k;
  const bool too_few = above_ + energies_.size() < k && thresholds.low > 1;
  if (too_many || too_few) {
    thresholds = {.scale = thresholds.scale};
    pass(spectrum, thresholds, bitmap);
  }
  std::size_t wanted = k - above_;  // of those between
  if (energies_.size() > wanted) {
    KthLargest last{std::numeric_limits<std::uint32_t>::max(), 0};
    if (wanted > 0) last = kth_largest(energies_, wanted);
    for (std::size_t i = 0; i < energies_.size(); ++i) {
      const std::uint32_t bits = magnitude(energies_[i]);
      const bool tie = bits == last.magnitude && last.ties > 0;
      last.ties -= static_cast<std::size_t>(tie);
      const std::uint64_t drop = std::uint64_t{!(bits > last.magnitude || tie)};
      bitmap[indices_[i] / kUnitsPerWord] &= ~(drop << (indices_[i] % kUnitsPerWord));
    }
  } else {
    wanted = energies_.size();
  }
  return {above_ + wanted, energy_, thresholds.scale};
}

}  // namespace thinreduce::kernels
