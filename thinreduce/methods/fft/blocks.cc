#include "thinreduce/methods/fft/blocks.h"

#include <algorithm>

#include "thinreduce/kernels/floats.h"

namespace thinreduce {
FftBlocks::FftBlocks(const BucketLayout& layout, std::size_t block_length,
                     kernels::Transform transform)
    : tables_(block_length, transform) {
  set_threads(1);
  for_compressed(layout, [&](std::size_t offset, std::size_t length) { cut(offset, length); });
  groups_ = (blocks_.size() + kernels::kBlockLanes - 1) / kernels::kBlockLanes;
}

void FftBlocks::set_threads(std::size_t threads) {
  while (rooms_.size() < threads) {
    rooms_.push_back(
        {kernels::AlignedFloats(group_floats()), kernels::AlignedFloats(group_floats())});
  }
}

void FftBlocks::cut(std::size_t offset, std::size_t length) {
  for (std::size_t at = 0; at < length; at += tables_.length) {
    blocks_.push_back({offset + at, std::min(tables_.length, length - at)});
  }
}

// Offsets ascend and blocks do not overlap, so the position of the last full block tells whether
// all are contiguous.
bool FftBlocks::is_one_run(std::size_t group) const {
  const std::size_t first = group * kernels::kBlockLanes;
  const std::size_t last = first + kernels::kBlockLanes - 1;
  return last < blocks_.size() && blocks_[last].length == tables_.length &&
         blocks_[last].offset - blocks_[first].offset == group_floats() - tables_.length;
}

void FftBlocks::to_spectrum(std::size_t group, std::span<const float> values,
                            std::span<const float> more, std::span<float> spectrum,
                            std::size_t thread) {
  auto& staging = rooms_[thread].staging;
  std::span<const float> floats = staging;
  if (more.empty() && is_one_run(group)) {
    floats = values.subspan(blocks_[group * kernels::kBlockLanes].offset, group_floats());
  } else {
    if (!is_one_run(group)) std::fill(staging.begin(), staging.end(), 0.0f);
    for_runs(group, [&](std::size_t offset, std::size_t at, std::size_t length) {
      std::copy_n(&values[offset], length, &staging[at]);
      if (more.empty()) return;
      kernels::add(std::span<float>(staging).subspan(at, length), more.subspan(offset, length));
    });
  }
  kernels::forward(tables_, floats, spectrum, rooms_[thread].scratch);
}

void FftBlocks::write_scaled(std::size_t group, std::span<const float> spectrum, float scale,
                             std::span<float> values, std::size_t thread) {
  if (is_one_run(group)) {
    const auto run = values.subspan(blocks_[group * kernels::kBlockLanes].offset, group_floats());
    kernels::inverse(tables_, spectrum, run, rooms_[thread].scratch);
    return kernels::scale(run, scale);
  }
  from_spectrum(
      group, spectrum,
      [&](std::size_t offset, std::span<float> run) {
        kernels::scale(run, scale);
        std::copy(run.begin(), run.end(), values.begin() + static_cast<std::ptrdiff_t>(offset));
      },
      thread);
}

}  // namespace thinreduce
