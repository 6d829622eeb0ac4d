// The strongest pairs of a spectrum, selected, quantized and written as payloads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/kernels/aligned.h"
#include "thinreduce/methods/fft/blocks.h"
#include "thinreduce/methods/fft/pair_selector.h"
#include "thinreduce/methods/fft/payload.h"

namespace thinreduce {

// A range of a bucket's groups.
using Groups = UnitRange;

class SelectedPairs {
 public:
  // `bits` and `mantissa` are those of a coefficient; without a mantissa, the best is chosen in
  // every selection. `group_words` are the words of a group's bitmap.
  SelectedPairs(int bits, std::optional<int> mantissa, std::size_t group_words)
      : bits_(bits), mantissa_(mantissa), group_words_(group_words) {}

  // Selects the k strongest pairs of values + more outside the groups of `skip`; `more` may be
  // empty. A sample of the groups is transformed first, so that one pass over the bucket suffices.
  struct Source {
    std::span<const float> values;
    std::span<const float> more;
    Groups skip;
  };
  void select(FftBlocks& blocks, const Source& source, std::size_t k, Workers workers = {});
  // Selects the k strongest pairs of a spectrum of whole groups.
  void select(std::span<const float> spectrum, std::size_t k);

  [[nodiscard]] const SpectrumHead& head() const { return head_; }
  // Lets so many threads, numbered from 0, call the functions below at a time. Each must pass its
  // number.
  void set_threads(std::size_t threads) { rooms_.resize(std::max(rooms_.size(), threads)); }
  // Replaces `payload` by the selected pairs of some groups.
  void write(Groups groups, std::vector<std::byte>& payload, std::size_t thread = 0);
  // Adds `sign` times the values that write() sends for some groups to their spectrum.
  void add_sent(Groups groups, float sign, std::span<float> spectrum, std::size_t thread = 0);

 private:
  void set_groups(std::size_t groups);
  [[nodiscard]] std::span<const std::uint64_t> bitmap_of(Groups groups) const;
  void quantize(Groups groups, std::vector<std::uint16_t>& codes) const;
  void finish(std::size_t k, Workers workers = {});
  // Adds the spectra of all groups to the selector; transform(group, spectrum, thread) makes them.
  template <typename SpectrumOf>
  void add_groups(std::size_t groups, Workers workers, const kernels::Thresholds& thresholds,
                  const SpectrumOf& spectrum_of);
  void measure_energy(const kernels::PairSelector::Result& selected);
  void choose_format(std::span<const float> values);

  int bits_;
  std::optional<int> mantissa_;
  std::size_t group_words_;
  kernels::PairSelector selector_;
  std::vector<kernels::AlignedFloats> group_;  // spectrum of one group, by thread
  kernels::AlignedFloats sample_;              // spectra of some groups, for guessing the threshold
  std::vector<float> format_sample_;
  std::vector<std::uint64_t> bitmap_;  // of the selected pairs
  std::span<const float> values_;      // two per selected pair
  std::vector<std::size_t> firsts_;    // per group, and at the end: index of its first value
  SpectrumHead head_;
  struct Room {
    std::vector<std::uint16_t> codes;  // of some groups
    std::vector<float> sent;           // the values that they stand for
  };
  std::vector<Room> rooms_{1};  // by thread
};

}  // namespace thinreduce
