// Counter-based random numbers: the same on every rank, independent of earlier draws.
#pragma once

#include <cstdint>

#include "thinreduce/wire/mix.h"

namespace thinreduce::train {

// Purpose of a number, so that different purposes draw different numbers.
enum class Draw : std::uint64_t { order = 1, crop = 2, flip = 3, offset = 4 };

struct RandomKey {
  std::uint64_t seed = 0;
  Draw draw = Draw::order;
  std::uint64_t epoch = 0;
};

inline std::uint64_t random_bits(const RandomKey& key, std::uint64_t index) {
  return mix({key.seed, static_cast<std::uint64_t>(key.draw), key.epoch, index});
}

// Returns a number in [0, bound). Its bias of 2^-32 does not matter for shuffling samples.
inline std::uint64_t random_below(const RandomKey& key, std::uint64_t index, std::uint32_t bound) {
  return ((random_bits(key, index) >> 32U) * bound) >> 32U;
}

}  // namespace thinreduce::train
