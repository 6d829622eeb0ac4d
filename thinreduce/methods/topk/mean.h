// The mean of the values that all ranks have sent.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "thinreduce/collective/chunks.h"
#include "thinreduce/collective/workers.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce {

// Replaces `mean` by the mean of the ranks' payloads: their values are added in rank order, block
// by block. elements_of(block) returns the range of a block. Throws Error{bad_frame} if a payload
// is invalid; `mean` is then undefined.
template <typename Reader, typename ElementsOf>
void write_topk_mean(std::span<const Reader> ranks, std::size_t blocks,
                     const ElementsOf& elements_of, std::span<float> mean, Workers workers) {
  const float share = 1.0F / static_cast<float>(ranks.size());
  workers.for_blocks(blocks, [&](std::size_t block, std::size_t /*thread*/) {
    const auto own = part(mean, elements_of(block));
    std::ranges::fill(own, 0.0F);
    for (const Reader& rank : ranks) rank.add(block, mean);
    kernels::scale(own, share);
  });
}

}  // namespace thinreduce
