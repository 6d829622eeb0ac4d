// Keys of the random streams that quantizers draw their dither from. Every rank can replay the
// streams of all others.
#pragma once

#include <cstdint>
#include <vector>

#include "thinreduce/wire/frame.h"
#include "thinreduce/wire/random.h"

namespace thinreduce {

// Returns the key of `rank`'s stream in the step and bucket of `id`.
[[nodiscard]] inline RandomKey stream_key(std::uint64_t seed, const FrameId& id, int rank,
                                          std::uint32_t purpose = 0) {
  return random_key({.seed = seed,
                     .step = id.step,
                     .bucket = id.bucket,
                     .rank = static_cast<std::uint32_t>(rank),
                     .purpose = purpose});
}

// Replaces `keys` by the keys of all ranks.
inline void stream_keys(std::uint64_t seed, const FrameId& id, int world,
                        std::vector<RandomKey>& keys) {
  keys.clear();
  for (int rank = 0; rank < world; ++rank) keys.push_back(stream_key(seed, id, rank));
}

}  // namespace thinreduce
