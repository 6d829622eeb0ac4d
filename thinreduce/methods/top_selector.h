// Selects exactly the k elements of largest magnitude, in little more than one pass over memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/collective/workers.h"
#include "thinreduce/kernels/select.h"

namespace thinreduce {

// Returns those of the ascending `elements` that are in `run`.
[[nodiscard]] std::span<const std::uint32_t> elements_in(Range run,
                                                         std::span<const std::uint32_t> elements);

// Selected elements, ordered by index.
struct Selected {
  std::span<const std::uint32_t> indices;
  std::span<const float> values;
};

// Zeros are never selected, so there are fewer than k if fewer values are non-zero. Among equal
// magnitudes the lower index wins. Values must not be NaN; at most 2^32-1 elements.
//
// Algorithm: candidates, elements of at least some magnitude `threshold`, are collected run by run,
// in up to 16 parts at a time. When the buffer of a part is full its candidates are cut to the best
// k, and the threshold rises to just above the smallest of those: later elements have a higher
// index, so they lose ties. That alone is exact. It is fast because the threshold starts at a guess
// from a sample, low enough that almost certainly a few more than k candidates exist. If the guess
// was too high, a second pass runs without one.
//
// Keeps its memory between calls: 8 bytes per selected element and per candidate, of which each
// part has room for 16384 more.
class TopSelector {
 public:
  // The result is valid until the next call, which may have its indices as `zeros`.
  [[nodiscard]] Selected select(std::span<const float> values, std::size_t k, Workers workers = {});
  // Sets the elements `zeros`, which ascend, of `values` to 0, adds `addend` to `values`, and
  // selects from the sums. `values` are the sums, too, if this throws because memory runs out.
  [[nodiscard]] Selected add_select(std::span<float> values, std::span<const float> addend,
                                    std::size_t k, Workers workers = {},
                                    std::span<const std::uint32_t> zeros = {});
  // Values that are made run by run, when they are looked at; runs start at multiples of 16.
  struct Runs {
    std::size_t elements = 0;
    std::function<float(std::size_t element)> value_at;
    // Returns the values of a run, valid until the thread asks for another. `again`: a second pass.
    // If memory runs out in the first pass, it is called for all elements of that pass even so,
    // and the runs are then of any length.
    std::function<std::span<const float>(Range run, std::size_t thread, bool again)> values_of;
  };
  [[nodiscard]] Selected select(const Runs& runs, std::size_t k, Workers workers = {});

 private:
  // Candidates of one part of the elements.
  struct Part {
    Range elements;
    std::size_t next = 0;  // the first element that the current pass has not seen
    std::size_t count = 0;
    std::vector<std::uint32_t> indices;  // with spare room, as the values
    std::vector<float> values;
    std::size_t ties = 0;  // candidates of the smallest selected magnitude, those to be selected
    std::size_t kept = 0;  // candidates to be selected
  };

  void prepare(std::size_t elements, std::size_t k);
  template <typename ValueAt>
  [[nodiscard]] std::uint32_t guess(std::size_t elements, std::size_t k, Workers workers,
                                    const ValueAt& value_at);
  template <typename Collect>
  void pass(std::size_t k, std::uint32_t threshold, Workers workers, const Collect& collect_run);
  template <typename Collect>
  static void collect_part(Part& part, std::size_t k, std::uint32_t threshold,
                           const Collect& collect_run);
  // Calls visit(elements) for all elements that the pass has not seen, in any number of runs.
  // `begun`: there is a pass.
  template <typename Visit>
  void for_unseen(bool begun, std::size_t elements, const Visit& visit) const;
  static bool make_room(Part& part, std::size_t k, std::size_t length);
  static std::uint32_t cut(Part& part, std::size_t k);
  [[nodiscard]] std::size_t candidates() const;
  [[nodiscard]] Selected result(std::span<const float> values, std::size_t k, std::uint32_t guessed,
                                Workers workers);
  [[nodiscard]] Selected join(std::size_t k, Workers workers);

  std::vector<Part> parts_;
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;
  std::vector<std::size_t> places_;  // of the sample
  std::vector<float> sample_;
};

}  // namespace thinreduce
