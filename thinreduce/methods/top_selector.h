// The k elements of largest magnitude, exactly, in little more than one pass over the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/kernels/select.h"

namespace thinreduce::kernels {

// Elements that were selected, in ascending order of their index.
struct Selected {
  std::span<const std::uint32_t> indices;
  std::span<const float> values;
};

// Zeros are never selected, so there are fewer than k when fewer values are non-zero. Of equal
// magnitudes the lower index goes first. Not NaN; at most 2^32-1 elements.
//
// How: candidates, the elements of at least some magnitude `least`, are collected run by run. When
// their room is full they are cut to the best k, and `least` rises to just above the smallest of
// those: what comes later has a higher index, so a tie no longer counts. That alone is exact. It is
// fast because `least` starts at a guess from a sample, so low that in all likelihood a few more
// than k candidates exist. If it was too high after all, there is a second pass without a guess.
//
// Keeps its memory, 8 bytes for each of min(elements, 2k + 65536) candidates, between calls.
class TopSelector {
 public:
  // The result is valid until the next call.
  [[nodiscard]] Selected select(std::span<const float> values, std::size_t k);
  // The same of values[i] += addend[i].
  [[nodiscard]] Selected add_select(std::span<float> values, std::span<const float> addend,
                                    std::size_t k);

 private:
  void prepare(std::size_t elements, std::size_t k);
  template <typename ValueAt>
  [[nodiscard]] std::uint32_t guess(std::size_t elements, std::size_t k, ValueAt&& value_at);
  template <typename Collect>
  void pass(std::size_t elements, std::size_t k, std::uint32_t least, Collect&& collect_run);
  std::uint32_t cut(std::size_t k);
  [[nodiscard]] Selected result(std::span<const float> values, std::size_t k,
                                std::uint32_t guessed);

  std::size_t count_ = 0;  // of candidates
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;
  std::vector<float> sample_;
};

}  // namespace thinreduce::kernels
