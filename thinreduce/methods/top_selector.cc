#include "thinreduce/methods/top_selector.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "thinreduce/collective/shared_loops.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce {
namespace {

// Elements per run: a run and its candidates fit into the L2 cache.
constexpr std::size_t kRun = 16384;
// Elements per part, at least, and parts at most. Neither depends on the number of threads, so that
// every number of them takes the same way.
constexpr std::size_t kPart = 8 * kRun;
constexpr std::size_t kMaxParts = 16;
// Sample size of the guess: at 1 % about 164 of them are above the true k-th magnitude. A larger
// sample would save needless candidates, but costs a cache miss per element.
constexpr std::size_t kSample = 16384;
// The guess is this many standard deviations of that count too low: a second pass is needed once in
// 10^9 calls.
constexpr double kDeviations = 6;
constexpr std::uint32_t kAnyNonZero = 1;

// A set of elements in which a search is short and stays in the cache: it knows where the elements
// of each block begin.
class AscendingSet {
 public:
  AscendingSet(std::span<const std::uint32_t> elements, std::size_t all) : elements_(elements) {
    for (std::size_t first = 0; first < all && !elements.empty(); first += kBlock) {
      const auto begin = std::ranges::lower_bound(elements, first);
      begin_.push_back(static_cast<std::size_t>(begin - elements.begin()));
    }
    begin_.push_back(elements.size());
  }
  [[nodiscard]] bool has(std::size_t element) const {
    if (elements_.empty()) return false;
    const std::size_t block = element / kBlock;
    std::size_t first = begin_[block];
    // Without branches, because nothing predicts them: first becomes the last one up to `element`.
    for (std::size_t count = begin_[block + 1] - first; count > 1; count -= count / 2) {
      first += elements_[first + count / 2] <= element ? count / 2 : 0;
    }
    return first < begin_[block + 1] && elements_[first] == element;
  }

 private:
  static constexpr std::size_t kBlock = 65536;
  std::span<const std::uint32_t> elements_;
  std::vector<std::size_t> begin_;
};

}  // namespace

std::span<const std::uint32_t> elements_in(Range run, std::span<const std::uint32_t> elements) {
  const auto first =
      static_cast<std::size_t>(std::ranges::lower_bound(elements, run.begin) - elements.begin());
  // They differ, so no more of them than elements of the run can be in it.
  const auto rest = elements.subspan(first, std::min(run.size(), elements.size() - first));
  return {rest.begin(), std::ranges::lower_bound(rest, run.end)};
}

void TopSelector::prepare(std::size_t elements, std::size_t k) {
  ensure(elements <= std::numeric_limits<std::uint32_t>::max(),
         "select: indices must fit in 32 bits", elements);
  const std::size_t runs = (elements + kRun - 1) / kRun;
  parts_.resize(std::clamp<std::size_t>(elements / kPart, 1, kMaxParts));
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const Range own = thinreduce::cut({0, runs}, parts_.size(), p);
    parts_[p].elements = {own.begin * kRun, std::min(own.end * kRun, elements)};
    // Room for its elements if the large ones are spread evenly, and a little more.
    (void)make_room(parts_[p], k, std::min(k, elements) / parts_.size() * 5 / 4);
  }
}

// Guesses a threshold from a sample: one element at a pseudo-random position in each of kSample
// equal stretches, so that no period of the data can line up with it.
template <typename ValueAt>
std::uint32_t TopSelector::guess(std::size_t elements, std::size_t k, Workers workers,
                                 const ValueAt& value_at) {
  if (elements < 4 * kSample) return kAnyNonZero;
  const double expected = static_cast<double>(k) / static_cast<double>(elements) * kSample;
  const auto wanted = static_cast<std::size_t>(expected + kDeviations * (std::sqrt(expected) + 1));
  if (wanted >= kSample) return kAnyNonZero;
  const std::size_t stretch = elements / kSample;
  places_.resize(kSample);
  sample_.resize(kSample);
  std::uint32_t random = 1;
  for (std::size_t i = 0; i < kSample; ++i) {
    random = random * 1664525 + 1013904223;
    places_[i] = i * stretch + (random >> 8) % stretch;
  }
  workers.for_runs(kSample, kSample / 8, [&](std::size_t first, std::size_t count, std::size_t) {
    for (std::size_t i = first; i < first + count; ++i) sample_[i] = value_at(places_[i]);
  });
  return std::max(kernels::kth_largest(sample_, wanted).magnitude, kAnyNonZero);
}

template <typename Collect>
void TopSelector::pass(std::size_t k, std::uint32_t threshold, Workers workers,
                       const Collect& collect_run) {
  workers.for_blocks(parts_.size(), [&](std::size_t p, std::size_t thread) {
    collect_part(parts_[p], k, threshold,
                 [&](Range run, std::uint32_t least, const kernels::Candidates& out) {
                   return collect_run(run, least, out, thread);
                 });
  });
}

template <typename Collect>
void TopSelector::collect_part(Part& part, std::size_t k, std::uint32_t threshold,
                               const Collect& collect_run) {
  part.count = 0;
  for (part.next = part.elements.begin; part.next < part.elements.end;) {
    const std::size_t first = part.next;
    const std::size_t length = std::min(kRun, part.elements.end - first);
    if (!make_room(part, k, part.count + length)) threshold = std::max(threshold, cut(part, k) + 1);
    part.count += collect_run(Range{first, first + length}, threshold,
                              kernels::Candidates{std::span(part.indices).subspan(part.count),
                                                  std::span(part.values).subspan(part.count)});
    part.next = first + length;
  }
}

// Makes room for `candidates`; returns false if they are more than a part may have.
bool TopSelector::make_room(Part& part, std::size_t k, std::size_t candidates) {
  if (candidates <= part.indices.size()) return true;
  const std::size_t most =
      std::min(part.elements.size(), 2 * std::min(k, part.elements.size()) + kRun);
  const std::size_t room = std::min(most, std::max(2 * part.indices.size(), candidates));
  if (room > part.indices.size()) {
    part.indices.resize(room);
    part.values.resize(room);
  }
  return candidates <= room;
}

// Keeps the best k candidates in order and returns the smallest magnitude among them.
std::uint32_t TopSelector::cut(Part& part, std::size_t k) {
  auto [last, ties] = kernels::kth_largest(std::span(part.values).first(part.count), k);
  part.count = kernels::keep_largest(
      {last, ties},
      {std::span(part.indices).first(part.count), std::span(part.values).first(part.count)},
      {part.indices, part.values});
  return last;
}

std::size_t TopSelector::candidates() const {
  std::size_t count = 0;
  for (const Part& part : parts_) count += part.count;
  return count;
}

Selected TopSelector::result(std::span<const float> values, std::size_t k, std::uint32_t guessed,
                             Workers workers) {
  if (candidates() < k && guessed > kAnyNonZero) {
    pass(k, kAnyNonZero, workers,
         [&](Range run, std::uint32_t threshold, const kernels::Candidates& out, std::size_t) {
           return kernels::collect(part(values, run), static_cast<std::uint32_t>(run.begin),
                                   threshold, out);
         });
  }
  return join(k, workers);
}

// Writes the best k candidates of all parts one after another.
Selected TopSelector::join(std::size_t k, Workers workers) {
  kernels::KthLargest last{kAnyNonZero, std::numeric_limits<std::size_t>::max()};
  const std::size_t count = std::min(candidates(), k);
  if (count == 0) return {};
  if (candidates() > k) {
    std::vector<std::span<const float>> values;
    for (const Part& part : parts_) values.push_back(std::span(part.values).first(part.count));
    last = kth_largest(workers, values, k);
  }
  workers.for_blocks(parts_.size(), [&](std::size_t p, std::size_t /*thread*/) {
    Part& part = parts_[p];
    part.ties = part.kept = 0;
    for (const float value : std::span(part.values).first(part.count)) {
      part.kept += static_cast<std::size_t>(kernels::magnitude(value) > last.magnitude);
      part.ties += static_cast<std::size_t>(kernels::magnitude(value) == last.magnitude);
    }
  });
  std::vector<std::size_t> begin(parts_.size());
  std::size_t next = 0;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    parts_[p].ties = std::min(parts_[p].ties, last.ties);
    last.ties -= parts_[p].ties;
    parts_[p].kept += parts_[p].ties;
    begin[p] = next;
    next += parts_[p].kept;
  }
  ensure(next == count, "select: all parts together must have k candidates", next, count);
  indices_.resize(std::max(indices_.size(), count));
  values_.resize(std::max(values_.size(), count));
  workers.for_blocks(parts_.size(), [&](std::size_t p, std::size_t /*thread*/) {
    Part& part = parts_[p];
    (void)kernels::keep_largest(
        {last.magnitude, part.ties},
        {std::span(part.indices).first(part.count), std::span(part.values).first(part.count)},
        {std::span(indices_).subspan(begin[p], part.kept),
         std::span(values_).subspan(begin[p], part.kept)});
  });
  return {std::span(indices_).first(count), std::span(values_).first(count)};
}

Selected TopSelector::select(std::span<const float> values, std::size_t k, Workers workers) {
  prepare(values.size(), k);
  if (k == 0) return {};
  const std::uint32_t guessed =
      guess(values.size(), k, workers, [&](std::size_t i) { return values[i]; });
  pass(k, guessed, workers,
       [&](Range run, std::uint32_t threshold, const kernels::Candidates& out, std::size_t) {
         return kernels::collect(part(values, run), static_cast<std::uint32_t>(run.begin),
                                 threshold, out);
       });
  return result(values, k, guessed, workers);
}

template <typename Visit>
void TopSelector::for_unseen(bool begun, std::size_t elements, const Visit& visit) const {
  if (!begun) return visit(Range{0, elements});
  for (const Part& part : parts_) visit(Range{part.next, part.elements.end});
}

Selected TopSelector::select(const Runs& runs, std::size_t k, Workers workers) {
  const auto collect_all = [&](std::uint32_t threshold, bool again) {
    pass(k, threshold, workers,
         [&](Range run, std::uint32_t least, const kernels::Candidates& out, std::size_t thread) {
           return kernels::collect(runs.values_of(run, thread, again),
                                   static_cast<std::uint32_t>(run.begin), least, out);
         });
  };
  std::uint32_t guessed = 0;
  bool begun = false;
  try {
    prepare(runs.elements, k);
    if (k == 0) return {};
    guessed = guess(runs.elements, k, workers, runs.value_at);
    for (Part& part : parts_) part.next = part.elements.begin;
    begun = true;
    collect_all(guessed, false);
  } catch (...) {
    for_unseen(begun, runs.elements, [&](Range run) { (void)runs.values_of(run, 0, false); });
    throw;
  }
  if (candidates() < k && guessed > kAnyNonZero) collect_all(kAnyNonZero, true);
  return join(k, workers);
}

Selected TopSelector::add_select(std::span<float> values, std::span<const float> addend,
                                 std::size_t k, Workers workers,
                                 std::span<const std::uint32_t> zeros) {
  ensure(values.size() == addend.size(), "add_select: spans must have the same length",
         values.size(), addend.size());
  const auto clear = [&](Range run) {
    for (const std::size_t element : elements_in(run, zeros)) values[element] = 0;
  };
  const auto clear_and_add = [&](Range run) {
    clear(run);
    kernels::add(part(values, run), part(addend, run));
  };
  std::uint32_t guessed = 0;
  bool begun = false;
  try {
    prepare(values.size(), k);
    const AscendingSet cleared(zeros, values.size());
    guessed = guess(values.size(), k, workers,
                    [&](std::size_t i) { return (cleared.has(i) ? 0.0F : values[i]) + addend[i]; });
    if (k == 0) {
      clear_and_add({0, values.size()});
      return {};
    }
    for (Part& part : parts_) part.next = part.elements.begin;
    begun = true;
    pass(k, guessed, workers,
         [&](Range run, std::uint32_t threshold, const kernels::Candidates& out, std::size_t) {
           clear(run);
           return kernels::add_collect(part(values, run), part(addend, run),
                                       static_cast<std::uint32_t>(run.begin), threshold, out);
         });
  } catch (...) {
    for_unseen(begun, values.size(), clear_and_add);
    throw;
  }
  return result(values, k, guessed, workers);
}

}  // namespace thinreduce
