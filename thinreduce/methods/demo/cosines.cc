#include "thinreduce/methods/demo/cosines.h"

#include <algorithm>

#include "thinreduce/ensure.h"

namespace thinreduce {

Cosines::Cosines(const BucketLayout& layout, std::size_t chunk)
    : blocks_(layout, chunk, kernels::Transform::dct) {}

template <typename Visit>
void Cosines::for_chunks(std::size_t group, const Visit& visit) const {
  const std::size_t first = group * kernels::kBlockLanes;
  const std::size_t count = std::min(kernels::kBlockLanes, blocks_.blocks() - first);
  for (std::size_t lane = 0; lane < count; ++lane) {
    visit(lane, (first + lane) * blocks_.block_length());
  }
}

void Cosines::set_threads(std::size_t threads) {
  blocks_.set_threads(threads);
  while (rooms_.size() < threads) rooms_.emplace_back(blocks_.group_floats());
}

void Cosines::forward(std::span<const float> values, std::span<float> coefficients,
                      Workers workers) {
  ensure(coefficients.size() == size(), "cosines: one float per coefficient", coefficients.size(),
         size());
  set_threads(workers.threads());
  workers.for_blocks(blocks_.groups(), [&](std::size_t group, std::size_t thread) {
    kernels::AlignedFloats& room = rooms_[thread];
    blocks_.to_spectrum(group, values, {}, room, thread);
    for_chunks(group, [&](std::size_t lane, std::size_t at) {
      for (std::size_t q = 0; q < blocks_.block_length(); ++q) {
        coefficients[at + q] = room[q * kernels::kBlockLanes + lane];
      }
    });
  });
}

void Cosines::inverse(std::span<const float> coefficients, const Take& take, Workers workers) {
  ensure(coefficients.size() == size(), "cosines: one float per coefficient", coefficients.size(),
         size());
  set_threads(workers.threads());
  workers.for_blocks(blocks_.groups(), [&](std::size_t group, std::size_t thread) {
    kernels::AlignedFloats& room = rooms_[thread];
    std::ranges::fill(room, 0.0F);
    for_chunks(group, [&](std::size_t lane, std::size_t at) {
      for (std::size_t q = 0; q < blocks_.block_length(); ++q) {
        room[q * kernels::kBlockLanes + lane] = coefficients[at + q];
      }
    });
    blocks_.from_spectrum(group, room, take, thread);
  });
}

}  // namespace thinreduce
