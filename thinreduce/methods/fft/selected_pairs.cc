#include "thinreduce/methods/fft/selected_pairs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/fft/pairs.h"

namespace thinreduce {
namespace {

// mantissa=auto: the error is measured on about this many values.
constexpr std::size_t kFormatSample = 2048;

// Groups per stretch that a thread takes at a time, at least, and stretches at most. Neither
// depends on the number of threads.
constexpr std::size_t kStretchGroups = 4;
constexpr std::size_t kMaxStretches = 32;

// The threshold is guessed from one group in this many: from at least 16 groups, or from all groups
// of a small bucket.
std::size_t sample_stride(std::size_t groups) {
  return std::clamp<std::size_t>(groups / 16, 1, 32);
}

}  // namespace

void SelectedPairs::set_groups(std::size_t groups) {
  bitmap_.resize(groups * group_words_);
  firsts_.resize(groups + 1);
}

template <typename SpectrumOf>
void SelectedPairs::add_groups(std::size_t groups, Workers workers,
                               const kernels::Thresholds& thresholds,
                               const SpectrumOf& spectrum_of) {
  const std::size_t stretches = std::clamp<std::size_t>(groups / kStretchGroups, 1, kMaxStretches);
  std::vector<std::size_t> first_words;
  for (std::size_t s = 0; s < stretches; ++s) {
    first_words.push_back(cut({0, groups}, stretches, s).begin * group_words_);
  }
  selector_.start(thresholds, bitmap_, first_words);
  workers.for_blocks(stretches, [&](std::size_t s, std::size_t thread) {
    const Groups own = cut({0, groups}, stretches, s);
    for (std::size_t group = own.begin; group < own.end; ++group) {
      selector_.add(spectrum_of(group, thread), s);
    }
  });
}

void SelectedPairs::select(FftBlocks& blocks, const Source& source, std::size_t k,
                           Workers workers) {
  const std::size_t groups = blocks.groups();
  const std::size_t stride = sample_stride(groups);
  const std::size_t floats = blocks.group_floats();
  set_groups(groups);
  group_.resize(workers.threads());
  for (auto& group : group_) group.resize(floats);
  const std::size_t samples = (groups + stride - 1) / stride;
  sample_.resize(samples * floats);
  const auto sampled = [&](std::size_t group) {
    return std::span<float>(sample_).subspan(group / stride * floats, floats);
  };
  // Zeros are never selected.
  const auto transform = [&](std::size_t group, std::span<float> spectrum, std::size_t thread) {
    if (group >= source.skip.begin && group < source.skip.end) {
      std::fill(spectrum.begin(), spectrum.end(), 0.0f);
    } else {
      blocks.to_spectrum(group, source.values, source.more, spectrum, thread);
    }
    return std::span<const float>(spectrum);
  };
  workers.for_runs(samples, kStretchGroups,
                   [&](std::size_t first, std::size_t count, std::size_t thread) {
                     for (std::size_t i = first; i < first + count; ++i) {
                       transform(i * stride, sampled(i * stride), thread);
                     }
                   });
  const double pairs = static_cast<double>(blocks.blocks() * blocks.block_length()) / 2;
  const auto guessed = selector_.guess(sample_, static_cast<double>(k) / pairs, workers);
  add_groups(groups, workers, guessed, [&](std::size_t group, std::size_t thread) {
    return group % stride == 0 ? std::span<const float>(sampled(group))
                               : transform(group, group_[thread], thread);
  });
  if (!selector_.can_find(k)) {
    add_groups(groups, workers, selector_.everything(), [&](std::size_t group, std::size_t thread) {
      return transform(group, group_[thread], thread);
    });
  }
  finish(k, workers);
}

void SelectedPairs::select(std::span<const float> spectrum, std::size_t k) {
  set_groups(spectrum.size() / (2 * kernels::kPairsPerWord * group_words_));
  const double fraction = 2 * static_cast<double>(k) / static_cast<double>(spectrum.size());
  selector_.start(selector_.guess(spectrum, fraction), bitmap_);
  selector_.add(spectrum);
  if (!selector_.can_find(k)) {
    selector_.start(selector_.everything(), bitmap_);
    selector_.add(spectrum);
  }
  finish(k);
}

void SelectedPairs::finish(std::size_t k, Workers workers) {
  const auto selected = selector_.finish(k, workers);
  values_ = selected.values;
  for (std::size_t group = 0; group + 1 < firsts_.size(); ++group) {
    const auto words = std::span(bitmap_).subspan(group * group_words_, group_words_);
    firsts_[group + 1] = firsts_[group] + 2 * kernels::count_pairs(words);
  }
  measure_energy(selected);
  choose_format(selected.values);
}

void SelectedPairs::measure_energy(const kernels::PairSelector::Result& selected) {
  // Several independent sums hide the latency of the additions.
  std::array<double, 8> sums{};
  for (std::size_t i = 0; i < selected.values.size(); ++i) {
    const double scaled = static_cast<double>(selected.values[i]) * selected.scale;
    sums[i % sums.size()] += scaled * scaled;
  }
  const double kept = std::accumulate(sums.begin(), sums.end(), 0.0);
  const bool finite = std::isfinite(selected.energy);
  head_.overflow = !finite && kernels::first_nonfinite(selected.values) < selected.values.size();
  head_.kept_energy = finite && selected.energy > 0
                          ? static_cast<float>(std::min(kept / selected.energy, 1.0))
                          : 1.0f;
}

// Chooses the range float of this step. Coefficients beyond kMaxCoefficient are clipped; the
// clipped part stays in the residual.
void SelectedPairs::choose_format(std::span<const float> values) {
  kernels::ValueRange range = kernels::range_of(values);
  range.min = std::max(range.min, -kMaxCoefficient);
  range.max = std::min(range.max, kMaxCoefficient);
  if (mantissa_) {
    head_.format = kernels::RangeFloat::covering(range, bits_, *mantissa_);
    return;
  }
  format_sample_.clear();
  const std::size_t stride = values.size() / kFormatSample + 1;
  for (std::size_t i = 0; i < values.size(); i += stride) format_sample_.push_back(values[i]);
  head_.format = kernels::RangeFloat::fitting(range, bits_, format_sample_);
}

std::span<const std::uint64_t> SelectedPairs::bitmap_of(Groups groups) const {
  return std::span(bitmap_).subspan(groups.begin * group_words_, groups.size() * group_words_);
}

void SelectedPairs::quantize(Groups groups, std::vector<std::uint16_t>& codes) const {
  const std::size_t first = firsts_[groups.begin];
  codes.resize(firsts_[groups.end] - first);
  if (head_.overflow) return;
  kernels::quantize(head_.format, values_.subspan(first, codes.size()), codes);
}

void SelectedPairs::write(Groups groups, std::vector<std::byte>& payload, std::size_t thread) {
  auto& codes = rooms_[thread].codes;
  quantize(groups, codes);
  write_fft_payload(head_, {bitmap_of(groups), codes}, payload);
}

void SelectedPairs::add_sent(Groups groups, float sign, std::span<float> spectrum,
                             std::size_t thread) {
  auto& [codes, sent] = rooms_[thread];
  quantize(groups, codes);
  sent.resize(codes.size());
  kernels::dequantize(head_.format, codes, sent);
  const float* value = sent.data();
  kernels::for_pairs(bitmap_of(groups), [&](std::size_t pair) {
    const std::size_t at = kernels::pair_offset(pair);
    spectrum[at] += sign * *value++;
    spectrum[at + kernels::kBlockLanes] += sign * *value++;
  });
}

}  // namespace thinreduce
