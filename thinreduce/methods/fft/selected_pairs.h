// The strongest pairs of a spectrum, selected, quantized and written as payloads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/kernels/aligned.h"
#include "thinreduce/methods/fft/pair_selector.h"
#include "thinreduce/methods/fft/payload.h"

namespace thinreduce {

// A range of a bucket's groups.
using Groups = Range;

class SelectedPairs {
 public:
  // `bits` and `mantissa` are those of a coefficient; without a mantissa, the best is chosen in
  // every selection. `group_words` are the words of a group's bitmap.
  SelectedPairs(int bits, std::optional<int> mantissa, std::size_t group_words)
      : bits_(bits), mantissa_(mantissa), group_words_(group_words) {}

  // Selects the k strongest pairs outside the groups of `skip`. A sample of the groups is looked at
  // first, so that one pass over the bucket nearly always suffices.
  struct Source {
    std::size_t groups = 0;
    double pairs = 0;  // in all groups
    Groups skip;
    // Returns the spectrum of a group, valid until the thread asks for another.
    std::function<std::span<const float>(std::size_t group, std::size_t thread)> spectrum_of;
  };
  void select(const Source& source, std::size_t k, Workers workers = {});
  // Selects the k strongest pairs of a spectrum of whole groups.
  void select(std::span<const float> spectrum, std::size_t k);

  [[nodiscard]] const SpectrumHead& head() const { return selection_.head; }
  // Lets `threads` threads, numbered from 0, call the functions below at a time, for different
  // groups. Each must pass its number.
  void set_threads(std::size_t threads) { rooms_.resize(std::max(rooms_.size(), threads)); }
  // Makes room for add_sent() by thread 0 of groups with up to `floats` floats.
  void reserve_room(std::size_t floats) { rooms_[0].reserve(floats); }
  // Replaces `payload` by the selected pairs of some groups.
  void write(Groups groups, std::vector<std::byte>& payload);
  // Adds `sign` times the values that write() has sent for some groups to their spectrum.
  void add_sent(Groups groups, float sign, std::span<float> spectrum, std::size_t thread = 0);
  // Exchanges the selections of two objects with the same options, for use by add_sent().
  void swap_selection(SelectedPairs& other) noexcept { std::swap(selection_, other.selection_); }

 private:
  // The selected pairs, in the form in which they are sent.
  struct Selection {
    std::size_t run_words = 0;  // words per run of its places
    kernels::PairPlaces places;
    std::vector<std::uint16_t> codes;  // two per pair
    SpectrumHead head;

    [[nodiscard]] KeptPairs pairs_of(std::size_t first_word, std::size_t words) const;
  };
  [[nodiscard]] KeptPairs pairs_of(Groups groups) const {
    return selection_.pairs_of(groups.begin * group_words_, groups.size() * group_words_);
  }
  void finish(std::size_t k, Workers workers = {});
  void add_groups(std::size_t groups, Workers workers, const kernels::Thresholds& thresholds,
                  Groups skip,
                  const std::function<std::span<const float>(std::size_t, std::size_t)>& spectrum);
  void measure_energy(const PairSelector::Result& selected);
  void choose_format(std::span<const float> values);

  int bits_;
  std::optional<int> mantissa_;
  std::size_t group_words_;
  PairSelector selector_;
  kernels::AlignedFloats sample_;  // spectra of some groups, for guessing the threshold
  std::vector<float> format_sample_;
  std::span<const float> values_;  // two per selected pair
  Selection selection_;
  std::vector<std::vector<float>> rooms_{1};  // by thread: the sent values of some groups
};

}  // namespace thinreduce
