#include "thinreduce/wire/checksum.h"

// Inlined, so that the compiler uses the widest instructions that the build allows.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace thinreduce {

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t checksum(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace thinreduce
