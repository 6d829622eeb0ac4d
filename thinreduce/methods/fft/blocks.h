// Cuts a bucket into blocks and converts groups of 16 blocks between gradient and spectrum.
//
// Each compressed tensor is cut into blocks of one length, its last block padded with zeros; raw
// tensors have no blocks. 16 consecutive blocks are a *group*, whichever tensors they come from;
// the last group is padded with blocks of zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "thinreduce/kernels/aligned.h"
#include "thinreduce/kernels/block_transform.h"
#include "thinreduce/method/bucket.h"

namespace thinreduce {

class FftBlocks {
 public:
  FftBlocks(const BucketLayout& layout, std::size_t block_length, kernels::Transform transform);

  [[nodiscard]] std::size_t blocks() const { return blocks_.size(); }
  [[nodiscard]] std::size_t groups() const { return groups_.size(); }
  [[nodiscard]] std::size_t block_length() const { return tables_.length; }
  // Floats per group; its spectrum has as many.
  [[nodiscard]] std::size_t group_floats() const { return tables_.length * kernels::kBlockLanes; }

  // Lets `threads` threads, numbered from 0, transform groups at a time. Each must pass its number.
  void set_threads(std::size_t threads);

  // Writes the spectrum of a group of `values` + `more`; `more` may be empty. Both are whole
  // buckets.
  void to_spectrum(std::size_t group, std::span<const float> values, std::span<const float> more,
                   std::span<float> spectrum, std::size_t thread = 0);
  // Transforms a group back, multiplies it by `scale` and calls `take(offset, floats)` for each run
  // of the bucket in it.
  template <typename Take>
  void from_spectrum(std::size_t group, std::span<const float> spectrum, Take&& take,
                     std::size_t thread = 0, float scale = 1) {
    Room& room = rooms_[thread];
    kernels::inverse(tables_, spectrum, scale, room.staging, room.scratch);
    for_runs(group, [&](std::size_t offset, std::size_t at, std::size_t length) {
      take(offset, std::span<float>(room.staging).subspan(at, length));
    });
  }
  // Transforms a group back and overwrites its elements of `values`, multiplied by `scale`.
  void write_scaled(std::size_t group, std::span<const float> spectrum, float scale,
                    std::span<float> values, std::size_t thread = 0);
  // Calls `visit(offset, at, length)`: elements [offset, offset + length) of the bucket are floats
  // [at, at + length) of the group.
  template <typename Visit>
  void for_runs(std::size_t group, Visit&& visit) const {
    if (groups_[group].one_run) return visit(groups_[group].offset, 0, group_floats());
    const std::size_t first = group * kernels::kBlockLanes;
    const std::size_t count = std::min(kernels::kBlockLanes, blocks_.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      visit(blocks_[first + i].offset, i * tables_.length, blocks_[first + i].length);
    }
  }

 private:
  struct Block {
    std::size_t offset = 0;  // in the bucket
    std::size_t length = 0;  // without padding
  };
  struct Group {
    std::size_t offset = 0;  // of its first block
    bool one_run = false;    // it has 16 full blocks, which are contiguous
  };
  // Memory for the transform of one group.
  struct Room {
    kernels::AlignedFloats staging;
    kernels::AlignedFloats scratch;
  };
  void cut(std::size_t offset, std::size_t length);
  [[nodiscard]] Group group_at(std::size_t first) const;

  kernels::TransformTables tables_;
  std::vector<Block> blocks_;
  std::vector<Group> groups_;
  std::vector<Room> rooms_;  // by thread
};

}  // namespace thinreduce
