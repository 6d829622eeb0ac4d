// Cuts the elements of a bucket into blocks that share one scale each. A block ends after every
// `block` elements of the bucket, and where a tensor begins or ends: none has elements of two.
//
// Blocks are counted from the start of the bucket, not of a tensor, so that most begin where the
// kernels work on whole vectors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "thinreduce/method/layout.h"

namespace thinreduce {

class BlockGrid {
 public:
  // A block that ends only with its tensor.
  static constexpr std::size_t kWholeLayer = std::size_t{1} << 40;

  BlockGrid() = default;
  BlockGrid(std::size_t elements, std::size_t block) : elements_(elements), block_(block) {}
  BlockGrid(const BucketLayout& layout, std::size_t block);

  [[nodiscard]] std::size_t elements() const { return elements_; }
  // Returns the maximum number of elements of a block.
  [[nodiscard]] std::size_t block() const { return block_; }
  [[nodiscard]] std::size_t blocks() const {
    return elements_ == 0 ? 0 : (elements_ - 1) / block_ + 1 + cuts_.size();
  }

  // Returns the grid with blocks of another size.
  [[nodiscard]] BlockGrid with_block(std::size_t block) const;
  // Returns the grid of elements [first, first + count) as a run of their own.
  [[nodiscard]] BlockGrid part(std::size_t first, std::size_t count) const;

  [[nodiscard]] bool begins_at(std::size_t element) const {
    return element % block_ == 0 || std::binary_search(cuts_.begin(), cuts_.end(), element);
  }
  // Returns the first element from `element` on with which a block begins; elements() if none does.
  [[nodiscard]] std::size_t next_begin(std::size_t element) const;

  // Calls work(block, offset, count) for each part of elements [first, first + count) that lies in
  // one block; `offset` counts from `first`.
  template <typename Work>
  void for_each_block(std::size_t first, std::size_t count, Work&& work) const {
    auto cut = std::upper_bound(cuts_.begin(), cuts_.end(), first);
    const std::size_t end = first + count;
    for (std::size_t at = first; at < end;) {
      const std::size_t whole = at / block_;
      const std::size_t index = whole + static_cast<std::size_t>(cut - cuts_.begin());
      std::size_t stop = std::min(end, (whole + 1) * block_);
      if (cut != cuts_.end() && *cut <= stop) stop = *cut++;
      work(index, at - first, stop - at);
      at = stop;
    }
  }

 private:
  BlockGrid(std::size_t elements, std::size_t block, std::vector<std::size_t> borders);

  std::size_t elements_ = 0;
  std::size_t block_ = 1;
  std::vector<std::size_t> borders_;  // where tensors begin or end inside the bucket
  std::vector<std::size_t> cuts_;     // those of them that are not multiples of the block
};

}  // namespace thinreduce
