#include "thinreduce/wire/checksum.h"

#include "thinreduce/wire/xxh3.h"

namespace thinreduce {

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return xxh3(bytes.data(), bytes.size(), 0);
}

std::uint64_t checksum(std::string_view text) {
  return xxh3(text.data(), text.size(), 0);
}

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
  return xxh3(bytes.data(), bytes.size(), seed);
}

}  // namespace thinreduce
