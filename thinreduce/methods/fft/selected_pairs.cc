#include "thinreduce/methods/fft/selected_pairs.h"

#include <algorithm>
#include <cmath>

#include "thinreduce/collective/workers.h"
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
std::size_t sample_stride(std::size_t groups, std::size_t most) {
  return std::clamp<std::size_t>(groups / 16, 1, most);
}

bool contains(Groups groups, std::size_t group) {
  return group >= groups.begin && group < groups.end;
}

}  // namespace

void SelectedPairs::add_groups(
    std::size_t groups, Workers workers, const kernels::Thresholds& thresholds, Groups skip,
    const std::function<std::span<const float>(std::size_t, std::size_t)>& spectrum) {
  const std::size_t stretches = std::clamp<std::size_t>(groups / kStretchGroups, 1, kMaxStretches);
  selector_.start(thresholds, stretches);
  workers.for_blocks(stretches, [&](std::size_t s, std::size_t thread) {
    const Groups own = cut({0, groups}, stretches, s);
    for (std::size_t group = own.begin; group < own.end; ++group) {
      if (contains(skip, group)) {
        selector_.add_zeros(group_words_, s);
      } else {
        selector_.add(spectrum(group, thread), s);
      }
    }
  });
}

void SelectedPairs::select(const Source& source, std::size_t k, Workers workers) {
  const std::size_t stride = sample_stride(source.groups, 32);
  const std::size_t floats = group_words_ * 2 * kernels::kPairsPerWord;
  selection_.run_words = std::min(group_words_, PairSelector::kRunWords);
  const std::size_t samples = (source.groups + stride - 1) / stride;
  sample_.resize(samples * floats);
  const auto sampled = [&](std::size_t i) {
    return std::span<float>(sample_).subspan(i * floats, floats);
  };
  workers.for_runs(samples, kStretchGroups,
                   [&](std::size_t first, std::size_t count, std::size_t thread) {
                     for (std::size_t i = first; i < first + count; ++i) {
                       const std::size_t group = i * stride;
                       if (contains(source.skip, group)) {
                         std::ranges::fill(sampled(i), 0.0f);
                       } else {
                         std::ranges::copy(source.spectrum_of(group, thread), sampled(i).begin());
                       }
                     }
                   });
  const double fraction = source.pairs > 0 ? static_cast<double>(k) / source.pairs : 0;
  const auto guessed = PairSelector::guess(sample_, fraction);
  add_groups(source.groups, workers, guessed, source.skip,
             [&](std::size_t group, std::size_t thread) {
               return group % stride == 0 ? std::span<const float>(sampled(group / stride))
                                          : source.spectrum_of(group, thread);
             });
  if (!selector_.can_find(k)) {
    add_groups(source.groups, workers, selector_.everything(), source.skip, source.spectrum_of);
  }
  finish(k, workers);
}

void SelectedPairs::select(std::span<const float> spectrum, std::size_t k) {
  const std::size_t floats = group_words_ * 2 * kernels::kPairsPerWord;
  const std::size_t groups = spectrum.size() / floats;
  selection_.run_words = PairSelector::kRunWords;
  // A piece of a bucket has few groups, which may differ much.
  const std::size_t stride = sample_stride(groups, 4);
  sample_.clear();
  for (std::size_t group = 0; group < groups; group += stride) {
    const auto sampled = spectrum.subspan(group * floats, floats);
    sample_.insert(sample_.end(), sampled.begin(), sampled.end());
  }
  const double fraction = 2 * static_cast<double>(k) / static_cast<double>(spectrum.size());
  selector_.start(PairSelector::guess(sample_, fraction));
  selector_.add(spectrum);
  if (!selector_.can_find(k)) {
    selector_.start(selector_.everything());
    selector_.add(spectrum);
  }
  finish(k);
}

void SelectedPairs::finish(std::size_t k, Workers workers) {
  const auto selected = selector_.finish(k, selection_.places, workers);
  values_ = selected.values;
  selection_.codes.resize(values_.size());
  // Neither needs what the other finds. Few values are not worth waking a thread for.
  const std::size_t together = values_.size() > kFloatsPerBlock ? 1 : 2;
  workers.for_runs(2, together, [&](std::size_t first, std::size_t count, std::size_t /*thread*/) {
    for (std::size_t i = first; i < first + count; ++i) {
      if (i == 0) measure_energy(selected);
      if (i == 1) choose_format(selected.values);
    }
  });
}

void SelectedPairs::measure_energy(const PairSelector::Result& selected) {
  // The scale is a power of two, so it does not matter whether values or sums are multiplied.
  const double scale = selected.scale;
  const double kept = kernels::square_sum(selected.values) * (scale * scale);
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

KeptPairs SelectedPairs::Selection::pairs_of(std::size_t first_word, std::size_t words) const {
  const std::size_t run = first_word / run_words;
  const std::size_t runs = (words + run_words - 1) / run_words;
  const auto firsts = std::span(places.firsts).subspan(run, runs + 1);
  const std::size_t first = firsts.front();
  const std::size_t count = firsts.back() - first;
  return {.words = words,
          .run_words = run_words,
          .firsts = firsts,
          .positions = std::span(places.positions).subspan(first, count),
          .codes = std::span(codes).subspan(2 * first, 2 * count)};
}

void SelectedPairs::write(Groups groups, std::vector<std::byte>& payload) {
  const KeptPairs pairs = pairs_of(groups);
  const SpectrumHead& head = selection_.head;
  if (!head.overflow) {
    const std::size_t first = 2 * pairs.firsts.front();
    kernels::quantize(head.format, values_.subspan(first, pairs.codes.size()),
                      std::span(selection_.codes).subspan(first, pairs.codes.size()));
  }
  write_fft_payload(head, pairs, payload);
}

void SelectedPairs::add_sent(Groups groups, float sign, std::span<float> spectrum,
                             std::size_t thread) {
  auto& sent = rooms_[thread];
  const KeptPairs pairs = pairs_of(groups);
  sent.resize(std::max(sent.size(), pairs.codes.size()));
  kernels::dequantize(selection_.head.format, pairs.codes,
                      std::span(sent).first(pairs.codes.size()));
  std::size_t pair = 0;
  for (std::size_t run = 0; run + 1 < pairs.firsts.size(); ++run) {
    float* const to = &spectrum[run * pairs.run_words * 2 * kernels::kPairsPerWord];
    const std::size_t end = pairs.firsts[run + 1] - pairs.firsts.front();
    for (; pair < end; ++pair) {
      const std::size_t at = kernels::pair_offset(pairs.positions[pair]);
      to[at] += sign * sent[2 * pair];
      to[at + kernels::kColumns] += sign * sent[2 * pair + 1];
    }
  }
}

}  // namespace thinreduce
