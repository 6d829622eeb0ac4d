#include "thinreduce/wire/xxh3.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace thinreduce::xxh3_test {
namespace {

// The instructions that are chosen at run time give the value of those that every CPU has.
TEST(Xxh3, IsTheSameOnAllInstructions) {
  std::vector<std::uint8_t> bytes(100'000);
  std::uint32_t state = 1;
  for (auto& byte : bytes)
    byte = static_cast<std::uint8_t>((state = state * 1664525U + 1013904223U) >> 24);
  for (const std::size_t size : {0, 1, 3, 16, 17, 128, 129, 240, 241, 1023, 1024, 1025, 99'999}) {
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
      EXPECT_EQ(xxh3(bytes.data(), size, seed), XXH3_64bits_withSeed(bytes.data(), size, seed))
          << size << " " << seed;
    }
  }
}

}  // namespace
}  // namespace thinreduce::xxh3_test
