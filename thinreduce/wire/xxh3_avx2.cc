// Compiled with -mavx2: includes nothing whose inline functions other files might share.
#include "thinreduce/wire/xxh3.h"

#if defined(__AVX2__)
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace thinreduce {

std::uint64_t xxh3_avx2(const void* bytes, std::size_t size, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, size, seed);
}

}  // namespace thinreduce
#endif
