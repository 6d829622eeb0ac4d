#include "thinreduce/methods/sketch/rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/collective/root.h"
#include "thinreduce/collective/shared_loops.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/sketch/cells.h"
#include "thinreduce/methods/sketch/half.h"
#include "thinreduce/methods/sketch/nomination.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

constexpr int kRoot = 0;

// The largest half is 65504. Cells are multiplied by a power of two that brings the largest cell of
// any rank near 2^15 / N: no sum over the ranks overflows, and few cells become denormal.
float agree_on_scale(Exchange& exchange, std::span<const float> cells) {
  float largest = 0;
  exchange.timed(Stage::encode, [&] { largest = kernels::largest_magnitude(cells); });
  std::vector<float> own;
  agree_on_maxima(exchange, std::span(&largest, 1), own, "cell");
  if (largest == 0) return 1;
  const int exponent =
      15 - std::ilogb(largest) - 1 - std::ilogb(static_cast<float>(exchange.size())) - 1;
  return std::ldexp(1.0f, std::clamp(exponent, -126, 126));
}

std::span<const std::byte> exactly(std::span<const std::byte> payload, std::size_t bytes,
                                   std::size_t rank) {
  if (payload.size() != bytes) {
    throw Error(ErrorCode::bad_frame,
                fmt::format("sketch payload of rank {} has {} bytes, expected {}", rank,
                            payload.size(), bytes));
  }
  return payload;
}

// Reads the root's selection: at most `max` ascending numbers below `limit`.
std::vector<std::uint32_t> read_ascending(std::span<const std::byte> bytes, std::size_t max,
                                          std::size_t limit) {
  if (bytes.size() % sizeof(std::uint32_t) != 0 || bytes.size() / sizeof(std::uint32_t) > max) {
    throw Error(ErrorCode::bad_frame,
                fmt::format("rank {}'s list of selected elements has {} bytes; the max is {} bytes",
                            kRoot, bytes.size(), max * sizeof(std::uint32_t)));
  }
  std::vector<std::uint32_t> numbers(bytes.size() / sizeof(std::uint32_t));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] >= limit || (i > 0 && numbers[i] <= numbers[i - 1])) {
      throw Error(
          ErrorCode::bad_frame,
          fmt::format("rank {}: selected index {} (entry {} of {}) must be larger than the one "
                      "before it and below {}",
                      kRoot, numbers[i], i, numbers.size(), limit));
    }
  }
  return numbers;
}

template <typename T>
void append(std::vector<std::byte>& bytes, std::span<const T> values) {
  const auto raw = std::as_bytes(values);
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

}  // namespace

void SketchRounds::abandon() {
  early_.sum.reset();
  agreement_.reset();
}

void SketchRounds::begin(Exchange& exchange, float largest) {
  abandon();
  if (options_.values == SketchValues::i16) agreement_.emplace(exchange, largest);
}

void SketchRounds::round_own(std::span<const std::uint32_t> elements, std::span<const float> own,
                             Workers workers, Summed& into) const {
  into.own.resize(elements.size());
  into.room.resize(elements.size());
  into.sums.resize(elements.size());
  for_floats(workers, elements.size(), [&](std::size_t first, std::size_t count) {
    const auto values = std::span(into.sums).subspan(first, count);
    for (std::size_t i = 0; i < count; ++i) values[i] = own[elements[first + i]];
    quantum_->round(values, std::span(into.own).subspan(first, count));
  });
}

void SketchRounds::begin_nominees(Exchange& exchange, std::span<const std::uint32_t> nominees,
                                  std::span<const float> own) {
  if (options_.values != SketchValues::i16 || exchange.size() == 1 ||
      options_.collective != SketchCollective::automatic || nominees.empty()) {
    return;
  }
  quantum_ = agreement_->conclude(exchange);
  early_.elements.assign(nominees.begin(), nominees.end());
  exchange.timed(Stage::encode,
                 [&] { round_own(early_.elements, own, exchange.workers, early_.values); });
  auto& [multiples, room, sums] = early_.values;
  early_.codec = make_multiples(exchange, *quantum_, {multiples, room, sums});
  early_.sum = std::make_unique<OwnerSumInParts>(exchange, *early_.codec);
  early_.sum->send_parts();
}

// Sums the values of the candidates that the sketch has shown, and joins them with the nominees'.
void SketchRounds::join_nominees(Exchange& exchange, std::span<const std::uint32_t> candidates,
                                 std::span<const float> own) {
  exchange.timed(Stage::encode, [&] { round_own(candidates_, own, exchange.workers, found_); });
  sum_multiples(exchange, *quantum_, {found_.own, found_.room, found_.sums}, sum_options());
  early_.sum->take_answers();
  early_.sum.reset();
  exchange.timed(Stage::decode, [&] {
    multiples_.resize(candidates.size());
    exact_.resize(candidates.size());
    for_floats(exchange.workers, candidates.size(), [&](std::size_t first, std::size_t count) {
      auto nominee = static_cast<std::size_t>(
          std::ranges::lower_bound(early_.elements, candidates[first]) - early_.elements.begin());
      for (std::size_t i = first; i < first + count; ++i) {
        const bool named =
            nominee < early_.elements.size() && early_.elements[nominee] == candidates[i];
        const Summed& from = named ? early_.values : found_;
        const std::size_t at = named ? nominee : i - nominee;
        multiples_[i] = from.own[at];
        exact_[i] = from.sums[at];
        nominee += static_cast<std::size_t>(named);
      }
    });
  });
}

std::span<const std::uint32_t> SketchRounds::find_candidates(Exchange& exchange,
                                                             const Search& search) {
  if (options_.collective == SketchCollective::root) {
    candidates_through_root(exchange, search);
    return candidates_;
  }
  sum_cells(exchange, search.sketch.cells());
  // After the cells, which would have to wait behind them.
  if (early_.sum) early_.sum->send_answers();
  exchange.timed(Stage::decode, [&] {
    require_finite_sum(exchange, search.sketch.cells(), "cell");
    select_candidates(search, exchange.workers);
  });
  return candidates_;
}

void SketchRounds::sum_cells(Exchange& exchange, std::span<float> cells) {
  if (options_.cells == SketchCells::f32) {
    sum_floats(exchange, cells, 1, sum_options());
    return;
  }
  HalfCells halves(cells);
  owner_reduce(exchange, halves);
}

// Estimates run by run, in the cache: estimates that are written to memory and read again would
// take as long as the selection.
void SketchRounds::select_candidates(const Search& search, Workers workers) {
  raw_.clear();
  for_uncompressed(search.layout, [&](std::size_t first, std::size_t count) {
    raw_.push_back({first, first + count});
  });
  estimates_.resize(std::max(estimates_.size(), workers.threads()));
  const auto estimates_of = [&](Range run, std::size_t thread, bool /*again*/) {
    estimates_[thread].resize(std::max(estimates_[thread].size(), run.size()));
    const auto estimates = std::span(estimates_[thread]).first(run.size());
    search.sketch.estimate(run.begin, estimates);
    auto gap = std::ranges::partition_point(
        raw_, [&](const Range& range) { return range.end <= run.begin; });
    for (; gap != raw_.end() && gap->begin < run.end; ++gap) {
      const std::size_t first = std::max(gap->begin, run.begin);
      std::fill_n(&estimates[first - run.begin], std::min(gap->end, run.end) - first, 0.0f);
    }
    clear_named(search.nominees, run, estimates);
    return std::span<const float>(estimates);
  };
  const auto selected = candidate_selector_.select(
      {.elements = search.layout.elements,
       .value_at = [&](std::size_t element) { return search.sketch.estimate(element); },
       .values_of = estimates_of},
      options_.max_candidates, workers);
  candidates_.assign(selected.indices.begin(), selected.indices.end());
}

std::vector<std::byte> SketchRounds::pack_cells(std::span<const float> cells, float scale) const {
  if (options_.cells == SketchCells::f32) {
    const auto bytes = std::as_bytes(cells);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::uint16_t> halves(cells.size());
  kernels::to_half(cells, scale, halves);
  const auto bytes = std::as_bytes(std::span(halves));
  return {bytes.begin(), bytes.end()};
}

// Rank 0 adds the sketches in rank order and answers with the candidates.
void SketchRounds::candidates_through_root(Exchange& exchange, const Search& search) {
  const bool halves = options_.cells == SketchCells::f16;
  const std::span<float> cells = search.sketch.cells();
  const float scale = halves ? agree_on_scale(exchange, cells) : 1;
  std::vector<std::byte> own;
  exchange.timed(Stage::encode, [&] { own = pack_cells(cells, scale); });
  const std::size_t limit = std::max(own.size(), options_.max_candidates * sizeof(std::uint32_t));
  const auto answer = through_root(exchange, kRoot, own, limit, [&](const auto& payloads) {
    std::vector<float> part(cells.size());
    std::fill(cells.begin(), cells.end(), 0.0f);
    for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
      const auto bytes = exactly(payloads[rank], own.size(), rank);
      if (halves) {
        std::vector<std::uint16_t> words(cells.size());
        std::memcpy(words.data(), bytes.data(), bytes.size());
        kernels::from_half(words, 1 / scale, part);
      } else {
        std::memcpy(part.data(), bytes.data(), bytes.size());
      }
      kernels::add(cells, part);
    }
    require_finite_sum(exchange, cells, "cell");
    select_candidates(search, exchange.workers);
    std::vector<std::byte> chosen;
    append(chosen, std::span<const std::uint32_t>(candidates_));
    return chosen;
  });
  candidates_ = read_ascending(answer, options_.max_candidates, search.layout.elements);
}

ExactSums SketchRounds::find_largest(Exchange& exchange, std::span<const std::uint32_t> candidates,
                                     std::span<const float> own) {
  if (early_.sum) {
    join_nominees(exchange, candidates, own);
    exchange.timed(Stage::decode, [&] { select_largest(exchange, candidates); });
  } else {
    sum_candidates(exchange, candidates, own);
  }
  exchange.timed(Stage::decode, [&] { collect_given(candidates, own, exchange.workers); });
  return {indices_, sums_, given_};
}

void SketchRounds::sum_candidates(Exchange& exchange, std::span<const std::uint32_t> candidates,
                                  std::span<const float> own) {
  const Workers workers = exchange.workers;
  exchange.timed(Stage::encode, [&] {
    exact_.resize(candidates.size());
    for_floats(workers, candidates.size(), [&](std::size_t first, std::size_t count) {
      for (std::size_t i = first; i < first + count; ++i) exact_[i] = own[candidates[i]];
    });
  });
  quantum_.reset();
  if (options_.values == SketchValues::i16) {
    quantum_ = agreement_->conclude(exchange);
    exchange.timed(Stage::encode, [&] {
      multiples_.resize(exact_.size());
      for_floats(workers, exact_.size(), [&](std::size_t first, std::size_t count) {
        quantum_->round(std::span(exact_).subspan(first, count),
                        std::span(multiples_).subspan(first, count));
      });
    });
  }
  if (options_.collective == SketchCollective::root) {
    largest_through_root(exchange, candidates);
  } else {
    if (quantum_) {
      room_.resize(multiples_.size());
      sum_multiples(exchange, *quantum_, {multiples_, room_, exact_}, sum_options());
    } else {
      sum_floats(exchange, exact_, 1, sum_options());
    }
    exchange.timed(Stage::decode, [&] { select_largest(exchange, candidates); });
  }
}

void SketchRounds::collect_given(std::span<const std::uint32_t> candidates,
                                 std::span<const float> own, Workers workers) {
  given_.resize(indices_.size());
  for_floats(workers, indices_.size(), [&](std::size_t first, std::size_t count) {
    // Both ascend, and all selected elements are candidates.
    auto at = static_cast<std::size_t>(std::ranges::lower_bound(candidates, indices_[first]) -
                                       candidates.begin());
    for (std::size_t i = first; i < first + count; ++i) {
      if (!quantum_) {
        given_[i] = own[indices_[i]];
        continue;
      }
      while (candidates[at] != indices_[i]) ++at;
      given_[i] = static_cast<float>(multiples_[at]) * quantum_->quantum();
    }
  });
}

void SketchRounds::select_largest(Exchange& exchange, std::span<const std::uint32_t> candidates) {
  require_finite_sum(exchange, exact_, "candidate");
  const auto selected = largest_selector_.select(exact_, options_.k, exchange.workers);
  indices_.resize(selected.indices.size());
  sums_.resize(selected.values.size());
  for_floats(exchange.workers, indices_.size(), [&](std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) {
      indices_[i] = candidates[selected.indices[i]];
      sums_[i] = selected.values[i];
    }
  });
}

// Adds one rank's values at the candidates. Multiples add exactly as floats, too: their sum has at
// most 15 bits.
void SketchRounds::add_part(std::span<const std::byte> payload, int rank) {
  std::vector<float> part(exact_.size());
  if (quantum_) {
    room_.resize(exact_.size());
    if (!room_.empty()) std::memcpy(room_.data(), payload.data(), payload.size());
    quantum_->check(room_, 1, rank);
    quantum_->restore(room_, part);
  } else if (!part.empty()) {
    std::memcpy(part.data(), payload.data(), payload.size());
  }
  kernels::add(exact_, part);
}

// Rank 0 adds the exact values in rank order and answers with elements, then their sums.
void SketchRounds::largest_through_root(Exchange& exchange,
                                        std::span<const std::uint32_t> candidates) {
  const std::vector<float> own = exact_;
  const auto own_bytes =
      quantum_ ? std::as_bytes(std::span(multiples_)) : std::as_bytes(std::span(own));
  constexpr std::size_t kPair = sizeof(std::uint32_t) + sizeof(float);
  const std::size_t limit = std::max(own_bytes.size(), options_.k * kPair);
  const auto answer = through_root(exchange, kRoot, own_bytes, limit, [&](const auto& payloads) {
    std::fill(exact_.begin(), exact_.end(), 0.0f);
    for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
      add_part(exactly(payloads[rank], own_bytes.size(), rank), static_cast<int>(rank));
    }
    select_largest(exchange, candidates);
    std::vector<std::byte> chosen;
    append(chosen, std::span<const std::uint32_t>(indices_));
    append(chosen, std::span<const float>(sums_));
    return chosen;
  });
  const std::size_t half = answer.size() / kPair * sizeof(std::uint32_t);
  ByteReader reader(answer, "answer of rank 0");
  const auto index_bytes = reader.take(half);
  const auto sum_bytes = reader.take(half);
  reader.finish();
  indices_ = read_ascending(index_bytes, options_.k,
                            candidates.empty() ? 0 : std::size_t{candidates.back()} + 1);
  if (!std::includes(candidates.begin(), candidates.end(), indices_.begin(), indices_.end())) {
    throw Error(ErrorCode::bad_frame,
                fmt::format("rank {} selected an element that is not a candidate", kRoot));
  }
  sums_.resize(indices_.size());
  if (!sums_.empty()) std::memcpy(sums_.data(), sum_bytes.data(), sum_bytes.size());
  require_finite_sum(exchange, sums_, "sum");
}

}  // namespace thinreduce
