// Messages in which the ranks name elements of a bucket to one another, in about one byte per
// element.
//
// The elements are dealt to the ranks in short blocks, block by block, so that every rank names
// elements of all tensors; the first block goes to another rank in each step. A rank names as large
// a fraction of its elements as all others. The length of a message is the same in every step, so
// it needs no header. The ranks send their messages at the same time: one latency for any N.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/collective/workers.h"

namespace thinreduce {

// Which elements each rank may name in one step, and how many. A *place* counts the elements that
// one rank may name.
class NominationTurns {
 public:
  // Elements per block: shorter than most rows of matrices, which may differ in magnitude.
  static constexpr std::size_t kBlock = 64;

  // All ranks together name up to `max` of `elements` elements.
  NominationTurns(std::size_t elements, std::size_t max, int world, std::uint64_t step);

  // Return how many elements `rank` may choose from, and how many it may name.
  [[nodiscard]] std::size_t places(int rank) const { return turn_of(rank).places; }
  [[nodiscard]] std::size_t max_named(int rank) const { return turn_of(rank).named; }
  // Returns the element of the bucket at a place of `rank`.
  [[nodiscard]] std::size_t element(int rank, std::size_t place) const {
    const std::size_t first = turn_of(rank).number;
    return (first + place / kBlock * turns_.size()) * kBlock + place % kBlock;
  }
  // Calls visit(first place, first element, count) for the runs of elements that a run of places
  // is.
  template <typename Visit>
  void for_runs(int rank, Range places, const Visit& visit) const {
    for (std::size_t place = places.begin; place < places.end;) {
      const std::size_t end = std::min(places.end, (place / kBlock + 1) * kBlock);
      visit(place, element(rank, place), end - place);
      place = end;
    }
  }

  // Returns all named elements, ascending; named[r] are the places that rank r has named.
  void join(std::span<const std::vector<std::uint32_t>> named,
            std::vector<std::uint32_t>& elements) const;

 private:
  struct Turn {
    std::size_t number = 0;  // of its first block
    std::size_t places = 0;
    std::size_t named = 0;  // places at most
  };
  [[nodiscard]] const Turn& turn_of(int rank) const {
    return turns_[(static_cast<std::size_t>(rank) + shift_) % turns_.size()];
  }

  std::size_t elements_;
  std::size_t shift_;        // turn of rank 0
  std::vector<Turn> turns_;  // one per rank
};

// Returns the bytes of a message that names up to `max` of `elements` elements.
[[nodiscard]] std::size_t nomination_bytes(std::size_t elements, std::size_t max);

// `named` must ascend and be below `elements`; `message` must have nomination_bytes() bytes.
void write_nomination(std::span<const std::uint32_t> named, std::span<std::byte> message,
                      Workers workers = {});

// Replaces `named` by the elements in `rank`'s message. Throws Error{bad_frame} for an element past
// the last of `elements`.
void read_nomination(std::span<const std::byte> message, int rank, std::size_t elements,
                     std::vector<std::uint32_t>& named);

// Sets `values`, those of the elements in `run`, to 0 at the named ones.
void clear_named(std::span<const std::uint32_t> named, Range run, std::span<float> values);

}  // namespace thinreduce
