// Selects exactly the k elements of largest magnitude, in little more than one pass over memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/kernels/select.h"

namespace thinreduce::kernels {

// Selected elements, ordered by index.
struct Selected {
  std::span<const std::uint32_t> indices;
  std::span<const float> values;
};

// Zeros are never selected, so there are fewer than k if fewer values are non-zero. Among equal
// magnitudes the lower index wins. Values must not be NaN; at most 2^32-1 elements.
//
// Algorithm: candidates, elements of at least some magnitude `threshold`, are collected run by run.
// When the buffer is full they are cut to the best k, and the threshold rises to just above the
// smallest of those: later elements have a higher index, so they lose ties. That alone is exact. It
// is fast because the threshold starts at a guess from a sample, low enough that almost certainly a
// few more than k candidates exist. If the guess was too high, a second pass runs without one.
//
// Keeps its memory, 8 bytes per candidate for min(elements, 2k + 65536) candidates, between calls.
class TopSelector {
 public:
  // The result is valid until the next call.
  [[nodiscard]] Selected select(std::span<const float> values, std::size_t k);
  // Adds `addend` to `values` and selects from the sums.
  [[nodiscard]] Selected add_select(std::span<float> values, std::span<const float> addend,
                                    std::size_t k);

 private:
  void prepare(std::size_t elements, std::size_t k);
  template <typename ValueAt>
  [[nodiscard]] std::uint32_t guess(std::size_t elements, std::size_t k, ValueAt&& value_at);
  template <typename Collect>
  void pass(std::size_t elements, std::size_t k, std::uint32_t threshold, Collect&& collect_run);
  std::uint32_t cut(std::size_t k);
  [[nodiscard]] Selected result(std::span<const float> values, std::size_t k,
                                std::uint32_t guessed);

  std::size_t count_ = 0;  // number of candidates
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;
  std::vector<float> sample_;
};

}  // namespace thinreduce::kernels
