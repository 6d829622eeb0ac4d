#include "thinreduce/methods/fft/pair_selector.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "thinreduce/collective/shared_loops.h"
#include "thinreduce/ensure.h"

namespace thinreduce {
namespace {

// Relative error allowed for the sample's count. Blocks differ, and the sample has only some of
// them: where rows of 1024 floats differ eightfold in magnitude, one group in 32 of 100 MB should
// have a standard deviation of about 5 % (estimated). Too small a margin only costs a second pass.
constexpr double kMargin = 0.2;
constexpr std::size_t kWordFloats = 2 * kernels::kPairsPerWord;

// Returns a factor that brings `largest` near 1, so that squares neither overflow nor vanish.
float power_of_two_below(float largest) {
  if (largest == 0 || !std::isfinite(largest)) return 1;
  return std::ldexp(1.0f, std::clamp(-std::ilogb(largest), -126, 126));
}

}  // namespace

// Counts energies in bins of 1/64 octave, from the largest that can occur with this scale down. Two
// tables, because an increment of the count that was just incremented would have to wait for it.
kernels::Thresholds PairSelector::guess(std::span<const float> sample, double fraction) {
  kernels::Thresholds thresholds;
  if (sample.empty()) return thresholds;
  thresholds.scale = power_of_two_below(kernels::largest_magnitude(sample));
  constexpr unsigned kShift = 17;
  constexpr std::size_t kBins = 2048;
  const std::uint32_t first = (kernels::magnitude(16.0f) >> kShift) - kBins;  // the lowest bin
  std::array<std::array<std::uint32_t, kBins>, 2> counts{};
  const std::size_t pairs = sample.size() / 2;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const std::uint32_t bits =
        kernels::magnitude(kernels::pair_energy(sample, pair, thresholds.scale)) >> kShift;
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

void PairSelector::start(const kernels::Thresholds& thresholds, std::size_t stretches) {
  thresholds_ = thresholds;
  stretches_.resize(stretches);
  for (Stretch& stretch : stretches_) stretch.clear();
}

void PairSelector::add(std::span<const float> part, std::size_t index) {
  Stretch& stretch = stretches_.at(index);
  ensure(part.size() % kWordFloats == 0, "select: a part must have whole words", part.size());
  for (std::size_t first = 0; first < part.size(); first += kRunWords * kWordFloats) {
    const auto run = part.subspan(first, std::min(kRunWords * kWordFloats, part.size() - first));
    const auto found = kernels::collect_pairs(run, thresholds_, stretch.room_for(run.size() / 2));
    stretch.run_sums.push_back(found.energy);
    stretch.run_counts.push_back(found.pairs);
    stretch.collected += found.pairs;
    stretch.betweens += found.between;
  }
}

void PairSelector::add_zeros(std::size_t words, std::size_t index) {
  auto& counts = stretches_.at(index).run_counts;
  counts.resize(counts.size() + (words + kRunWords - 1) / kRunWords);
}

void PairSelector::Stretch::clear() {
  run_sums.clear();
  run_counts.clear();
  collected = betweens = 0;
}

// Returns room for `pairs` more pairs.
kernels::PairRoom PairSelector::Stretch::room_for(std::size_t pairs) {
  const std::size_t end = collected + pairs + kernels::kPairSlack;
  if (energies.size() < end) {
    const std::size_t room = std::max(2 * energies.size(), end);
    positions.resize(room);
    values.resize(2 * room);
    energies.resize(room);
  }
  const std::size_t between_end = betweens + pairs + kernels::kPairSlack;
  if (between.size() < between_end) between.resize(std::max(2 * between.size(), between_end));
  return {.positions = std::span(positions).subspan(collected),
          .values = std::span(values).subspan(2 * collected),
          .energies = std::span(energies).subspan(collected),
          .between = std::span(between).subspan(betweens)};
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

PairSelector::Result PairSelector::finish(std::size_t k, kernels::PairPlaces& places,
                                          Workers workers) {
  std::size_t collected = 0;
  std::size_t betweens = 0;
  Result result{.values = {}, .energy = 0, .scale = thresholds_.scale};
  for (const Stretch& stretch : stretches_) {
    collected += stretch.collected;
    betweens += stretch.betweens;
    for (const double sum : stretch.run_sums) result.energy += sum;
  }
  ensure(can_find(k), "select: the thresholds must enclose the k-th largest energy", k);
  // Everything stays unless there is more than enough.
  kernels::KthLargest last{0, std::numeric_limits<std::size_t>::max()};
  if (collected > k) last = last_between(k - (collected - betweens), workers);
  workers.for_blocks(stretches_.size(), [&](std::size_t s, std::size_t /*thread*/) {
    count_kept(stretches_[s], last.magnitude);
  });
  std::size_t kept = 0;
  std::size_t runs = 0;
  for (Stretch& stretch : stretches_) {
    stretch.ties = std::min(stretch.ties, last.ties);
    last.ties -= stretch.ties;
    stretch.kept += stretch.ties;
    stretch.first = kept;
    stretch.first_run = runs;
    kept += stretch.kept;
    runs += stretch.run_counts.size();
  }
  values_.resize(std::max(values_.size(), 2 * kept));
  places.positions.resize(std::max(places.positions.size(), kept));
  places.firsts.resize(runs + 1);
  places.firsts.back() = kept;
  workers.for_blocks(stretches_.size(), [&](std::size_t s, std::size_t /*thread*/) {
    keep(stretches_[s], {last.magnitude, stretches_[s].ties}, places);
  });
  result.values = std::span(values_).first(2 * kept);
  return result;
}

// Returns the wanted-th largest energy between the thresholds; 0: all below the high one go.
kernels::KthLargest PairSelector::last_between(std::size_t wanted, Workers workers) const {
  if (wanted == 0) return {thresholds_.high - 1, 0};
  std::vector<std::span<const float>> energies;
  for (const Stretch& stretch : stretches_) {
    energies.push_back(std::span(stretch.between).first(stretch.betweens));
  }
  return kth_largest(workers, energies, wanted);
}

void PairSelector::count_kept(Stretch& stretch, std::uint32_t last) {
  stretch.kept = stretch.collected - stretch.betweens;
  stretch.ties = 0;
  for (const float energy : std::span(stretch.between).first(stretch.betweens)) {
    stretch.kept += static_cast<std::size_t>(kernels::magnitude(energy) > last);
    stretch.ties += static_cast<std::size_t>(kernels::magnitude(energy) == last);
  }
}

// Copies the selected pairs to their place. Has no branches that depend on whether a pair stays,
// which is unpredictable; only the end of a run is one.
void PairSelector::keep(const Stretch& stretch, kernels::KthLargest last,
                        kernels::PairPlaces& places) {
  const std::size_t end = stretch.first + stretch.kept;
  std::size_t next = stretch.first;
  std::size_t i = 0;
  for (std::size_t run = 0; run < stretch.run_counts.size(); ++run) {
    places.firsts[stretch.first_run + run] = next;
    for (const std::size_t run_end = i + stretch.run_counts[run]; i < run_end && next < end; ++i) {
      const std::uint32_t bits = kernels::magnitude(stretch.energies[i]);
      const bool tie = bits == last.magnitude && last.ties > 0;
      last.ties -= static_cast<std::size_t>(tie);
      std::memcpy(&values_[2 * next], &stretch.values[2 * i], 2 * sizeof(float));
      places.positions[next] = stretch.positions[i];
      next += static_cast<std::size_t>((bits > last.magnitude) | tie);
    }
  }
}

}  // namespace thinreduce
