// Random numbers from a counter: the same on every rank, whatever was drawn before.
#pragma once

#include <cstdint>

#include "thinreduce/wire/mix.h"

namespace thinreduce::train {

// What a number is for, so that no two uses draw the same ones.
enum class Draw : std::uint64_t { order = 1, crop = 2, flip = 3 };

struct RandomKey {
  std::uint64_t seed = 0;
  Draw draw = Draw::order;
  std::uint64_t epoch = 0;
};

inline std::uint64_t random_bits(const RandomKey& key, std::uint64_t index) {
  return mix(mix(mix(mix(key.seed) ^ static_cast<std::uint64_t>(key.draw)) ^ key.epoch) ^ index);
}

// In [0, bound). The bias of 2^-32 does not matter for shuffling images.
inline std::uint64_t random_below(const RandomKey& key, std::uint64_t index, std::uint32_t bound) {
  return ((random_bits(key, index) >> 32U) * bound) >> 32U;
}

}  // namespace thinreduce::train
