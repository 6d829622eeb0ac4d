// A bucket as blocks, 16 at a time: the way between gradients and spectra.
//
// Every tensor that is compressed is cut into blocks of one length in its own order, its last block
// filled up with zeros; raw tensors have none. 16 blocks in a row are a *group*, whichever tensors
// they come from; the last group is filled up with blocks of zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "thinreduce/kernels/aligned.h"
#include "thinreduce/method/bucket.h"
#include "thinreduce/methods/fft/block_transform.h"

namespace thinreduce {

class FftBlocks {
 public:
  FftBlocks(const BucketLayout& layout, std::size_t block_length, kernels::Transform transform);

  [[nodiscard]] std::size_t blocks() const { return blocks_.size(); }
  [[nodiscard]] std::size_t groups() const { return groups_; }
  [[nodiscard]] std::size_t block_length() const { return tables_.length; }
  // Floats of a group, and of its spectrum.
  [[nodiscard]] std::size_t group_floats() const { return tables_.length * kernels::kBlockLanes; }

  // The spectrum of a group of the bucket's `values` plus `more`, which is as long or empty.
  void to_spectrum(std::size_t group, std::span<const float> values, std::span<const float> more,
                   std::span<float> spectrum);
  // Calls `take(offset, floats)` for each run of the bucket that the group covers.
  template <typename Take>
  void from_spectrum(std::size_t group, std::span<const float> spectrum, Take&& take) {
    kernels::inverse(tables_, spectrum, staging_, scratch_);
    for_runs(group, [&](std::size_t offset, std::size_t at, std::size_t length) {
      take(offset, std::span<float>(staging_).subspan(at, length));
    });
  }
  // The same, written over the bucket's `values`, each times `scale`.
  void write_scaled(std::size_t group, std::span<const float> spectrum, float scale,
                    std::span<float> values);
  // Calls `visit(offset, at, length)`: elements [offset, offset + length) of the bucket are floats
  // [at, at + length) of the group.
  template <typename Visit>
  void for_runs(std::size_t group, Visit&& visit) const {
    const std::size_t first = group * kernels::kBlockLanes;
    const std::size_t count = std::min(kernels::kBlockLanes, blocks_.size() - first);
    if (is_one_run(group)) return visit(blocks_[first].offset, 0, group_floats());
    for (std::size_t i = 0; i < count; ++i) {
      visit(blocks_[first + i].offset, i * tables_.length, blocks_[first + i].length);
    }
  }

 private:
  struct Block {
    std::size_t offset = 0;  // in the bucket
    std::size_t length = 0;  // without the zeros it is filled up with
  };
  void cut(std::size_t offset, std::size_t length);
  [[nodiscard]] bool is_one_run(std::size_t group) const;

  kernels::TransformTables tables_;
  std::vector<Block> blocks_;
  std::size_t groups_ = 0;
  kernels::AlignedFloats staging_;
  kernels::AlignedFloats scratch_;
};

}  // namespace thinreduce
