#include "thinreduce/methods/fft/selected_pairs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "thinreduce/collective/workers.h"
#include "thinreduce/kernels/bit_loops.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/fft/block_transform.h"
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
std::size_t sample_stride(std::size_t groups, std::size_t most) {
  return std::clamp<std::size_t>(groups / 16, 1, most);
}

}  // namespace

void SelectedPairs::set_groups(std::size_t groups) {
  selection_.bitmap.resize(groups * group_words_);
  selection_.firsts.resize(groups + 1);
}

void SelectedPairs::add_groups(
    std::size_t groups, Workers workers, const kernels::Thresholds& thresholds,
    const std::function<std::span<const float>(std::size_t, std::size_t)>& spectrum) {
  const std::size_t stretches = std::clamp<std::size_t>(groups / kStretchGroups, 1, kMaxStretches);
  std::vector<std::size_t> first_words;
  for (std::size_t s = 0; s < stretches; ++s) {
    first_words.push_back(cut({0, groups}, stretches, s).begin * group_words_);
  }
  selector_.start(thresholds, selection_.bitmap, first_words);
  workers.for_blocks(stretches, [&](std::size_t s, std::size_t thread) {
    const Groups own = cut({0, groups}, stretches, s);
    for (std::size_t group = own.begin; group < own.end; ++group) {
      selector_.add(spectrum(group, thread), s);
    }
  });
}

void SelectedPairs::select(const Source& source, std::size_t k, Workers workers) {
  const std::size_t stride = sample_stride(source.groups, 32);
  const std::size_t floats = group_words_ * 2 * kernels::kPairsPerWord;
  set_groups(source.groups);
  // Zeros are never selected.
  const kernels::AlignedFloats zeros(source.skip.size() > 0 ? floats : 0);
  const auto spectrum_of = [&](std::size_t group, std::size_t thread) {
    const bool skipped = group >= source.skip.begin && group < source.skip.end;
    return skipped ? std::span<const float>(zeros) : source.spectrum_of(group, thread);
  };
  const std::size_t samples = (source.groups + stride - 1) / stride;
  sample_.resize(samples * floats);
  const auto sampled = [&](std::size_t i) {
    return std::span<float>(sample_).subspan(i * floats, floats);
  };
  workers.for_runs(samples, kStretchGroups,
                   [&](std::size_t first, std::size_t count, std::size_t thread) {
                     for (std::size_t i = first; i < first + count; ++i) {
                       std::ranges::copy(spectrum_of(i * stride, thread), sampled(i).begin());
                     }
                   });
  const double fraction = source.pairs > 0 ? static_cast<double>(k) / source.pairs : 0;
  const auto guessed = kernels::PairSelector::guess(sample_, fraction);
  add_groups(source.groups, workers, guessed, [&](std::size_t group, std::size_t thread) {
    return group % stride == 0 ? std::span<const float>(sampled(group / stride))
                               : spectrum_of(group, thread);
  });
  if (!selector_.can_find(k)) {
    add_groups(source.groups, workers, selector_.everything(), spectrum_of);
  }
  finish(k, workers);
}

void SelectedPairs::select(std::span<const float> spectrum, std::size_t k) {
  const std::size_t floats = group_words_ * 2 * kernels::kPairsPerWord;
  const std::size_t groups = spectrum.size() / floats;
  set_groups(groups);
  // A piece of a bucket has few groups, which may differ much.
  const std::size_t stride = sample_stride(groups, 4);
  sample_.clear();
  for (std::size_t group = 0; group < groups; group += stride) {
    const auto sampled = spectrum.subspan(group * floats, floats);
    sample_.insert(sample_.end(), sampled.begin(), sampled.end());
  }
  const double fraction = 2 * static_cast<double>(k) / static_cast<double>(spectrum.size());
  selector_.start(kernels::PairSelector::guess(sample_, fraction), selection_.bitmap);
  selector_.add(spectrum);
  if (!selector_.can_find(k)) {
    selector_.start(selector_.everything(), selection_.bitmap);
    selector_.add(spectrum);
  }
  finish(k);
}

void SelectedPairs::finish(std::size_t k, Workers workers) {
  const auto selected = selector_.finish(k, workers);
  values_ = selected.values;
  const auto count_codes = [&] {
    auto& firsts = selection_.firsts;
    for (std::size_t group = 0; group + 1 < firsts.size(); ++group) {
      firsts[group + 1] = firsts[group] + 2 * kernels::count_pairs(bitmap_of({group, group + 1}));
    }
    selection_.codes.resize(firsts.back());
  };
  // None needs what another finds. Few values are not worth waking a thread for.
  const std::size_t together = values_.size() > kFloatsPerBlock ? 1 : 3;
  workers.for_runs(3, together, [&](std::size_t first, std::size_t count, std::size_t /*thread*/) {
    for (std::size_t i = first; i < first + count; ++i) {
      if (i == 0) measure_energy(selected);
      if (i == 1) choose_format(selected.values);
      if (i == 2) count_codes();
    }
  });
}

void SelectedPairs::measure_energy(const kernels::PairSelector::Result& selected) {
  // Independent sums hide the latency of the additions.
  std::array<double, 8> sums{};
  const auto& values = selected.values;
  for (std::size_t first = 0; first < values.size(); first += sums.size()) {
    const std::size_t count = std::min(sums.size(), values.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      const double scaled = static_cast<double>(values[first + i]) * selected.scale;
      sums[i] += scaled * scaled;
    }
  }
  const double kept = std::accumulate(sums.begin(), sums.end(), 0.0);
  const bool finite = std::isfinite(selected.energy);
  selection_.head.overflow =
      !finite && kernels::first_nonfinite(selected.values) < selected.values.size();
  selection_.head.kept_energy = finite && selected.energy > 0
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
    selection_.head.format = kernels::RangeFloat::covering(range, bits_, *mantissa_);
    return;
  }
  format_sample_.clear();
  const std::size_t stride = values.size() / kFormatSample + 1;
  for (std::size_t i = 0; i < values.size(); i += stride) format_sample_.push_back(values[i]);
  selection_.head.format = kernels::RangeFloat::fitting(range, bits_, format_sample_);
}

std::span<const std::uint64_t> SelectedPairs::bitmap_of(Groups groups) const {
  return std::span(selection_.bitmap)
      .subspan(groups.begin * group_words_, groups.size() * group_words_);
}

std::span<std::uint16_t> SelectedPairs::codes_of(Groups groups) {
  const std::size_t first = selection_.firsts[groups.begin];
  return std::span(selection_.codes).subspan(first, selection_.firsts[groups.end] - first);
}

void SelectedPairs::write(Groups groups, std::vector<std::byte>& payload) {
  const auto codes = codes_of(groups);
  const SpectrumHead& head = selection_.head;
  if (!head.overflow) {
    const auto values = values_.subspan(selection_.firsts[groups.begin], codes.size());
    kernels::quantize(head.format, values, codes);
  }
  write_fft_payload(head, {bitmap_of(groups), codes}, payload);
}

void SelectedPairs::add_sent(Groups groups, float sign, std::span<float> spectrum,
                             std::size_t thread) {
  auto& sent = rooms_[thread];
  const auto codes = codes_of(groups);
  sent.resize(codes.size());
  kernels::dequantize(selection_.head.format, codes, sent);
  const float* value = sent.data();
  std::array<std::uint16_t, kSegmentPairs + kernels::kListSlack> list;
  const auto words = bitmap_of(groups);
  for (std::size_t first = 0; first < words.size(); first += kSegmentWords) {
    const auto part = words.subspan(first, std::min(kSegmentWords, words.size() - first));
    float* const to = &spectrum[first * 2 * kernels::kPairsPerWord];
    const std::size_t count = kernels::list_bits(part, list);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = kernels::pair_offset(list[i]);
      to[at] += sign * *value++;
      to[at + kernels::kBlockLanes] += sign * *value++;
    }
  }
}

}  // namespace thinreduce
