#include "thinreduce/methods/fft/blocks.h"

#include <algorithm>

#include "thinreduce/kernels/floats.h"

namespace thinreduce {
FftBlocks::FftBlocks(const BucketLayout& layout, std::size_t block_length,
                     kernels::Transform transform)
    : tables_(block_length, transform) {
  set_threads(1);
  for_compressed(layout, [&](std::size_t offset, std::size_t length) { cut(offset, length); });
  for (std::size_t first = 0; first < blocks_.size(); first += kernels::kBlockLanes) {
    groups_.push_back(group_at(first));
  }
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
FftBlocks::Group FftBlocks::group_at(std::size_t first) const {
  const std::size_t offset = blocks_[first].offset;
  const std::size_t last = first + kernels::kBlockLanes - 1;
  const bool one_run = last < blocks_.size() && blocks_[last].length == tables_.length &&
                       blocks_[last].offset - offset == group_floats() - tables_.length;
  return {offset, one_run};
}

void FftBlocks::to_spectrum(std::size_t group, std::span<const float> values,
                            std::span<const float> more, std::span<float> spectrum,
                            std::size_t thread) {
  auto& staging = rooms_[thread].staging;
  std::span<const float> floats = staging;
  const auto [offset, one_run] = groups_[group];
  if (more.empty() && one_run) {
    floats = values.subspan(offset, group_floats());
  } else {
    if (!one_run) std::fill(staging.begin(), staging.end(), 0.0f);
    for_runs(group, [&](std::size_t from, std::size_t at, std::size_t length) {
      std::copy_n(&values[from], length, &staging[at]);
      if (more.empty()) return;
      kernels::add(std::span<float>(staging).subspan(at, length), more.subspan(from, length));
    });
  }
  kernels::forward(tables_, floats, spectrum, rooms_[thread].scratch);
}

void FftBlocks::write_scaled(std::size_t group, std::span<const float> spectrum, float scale,
                             std::span<float> values, std::size_t thread) {
  if (groups_[group].one_run) {
    const auto run = values.subspan(groups_[group].offset, group_floats());
    return kernels::inverse(tables_, spectrum, scale, run, rooms_[thread].scratch);
  }
  from_spectrum(
      group, spectrum,
      [&](std::size_t offset, std::span<const float> run) {
        std::ranges::copy(run, values.begin() + static_cast<std::ptrdiff_t>(offset));
      },
      thread, scale);
}

}  // namespace thinreduce
