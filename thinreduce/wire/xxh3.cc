#include "thinreduce/wire/xxh3.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace thinreduce {

std::uint64_t xxh3(const void* bytes, std::size_t size, std::uint64_t seed) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return xxh3_avx2(bytes, size, seed);
#endif
  return XXH3_64bits_withSeed(bytes, size, seed);
}

}  // namespace thinreduce
