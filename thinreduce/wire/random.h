// Keys of random streams. docs/wire-format.md specifies them: ranks replay one another's streams,
// so the bits are part of the format.
#pragma once

#include <cstdint>

#include "thinreduce/kernels/random.h"
#include "thinreduce/wire/mix.h"

namespace thinreduce {

using kernels::random_bits;
using kernels::RandomKey;

// The name of a stream of draws 0, 1, 2, ...: usually one draw per element of the bucket.
struct RandomStream {
  std::uint64_t seed = 0;    // of the session
  std::uint64_t step = 0;    // FrameId::step
  std::uint32_t bucket = 0;  // FrameId::bucket
  std::uint32_t rank = 0;
  std::uint32_t purpose = 0;  // distinguishes the streams of a method that needs several
};

[[nodiscard]] constexpr RandomKey random_key(const RandomStream& stream) {
  const std::uint64_t rank = static_cast<std::uint64_t>(stream.bucket) << 32 | stream.rank;
  const std::uint64_t x = mix({stream.seed, stream.step, rank, stream.purpose});
  return {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(x >> 32)};
}

}  // namespace thinreduce
