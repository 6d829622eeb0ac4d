#include "thinreduce/kernels/bit_loops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/test_data.h"
#include "thinreduce/error.h"

namespace thinreduce::kernels::bit_loops_test {
namespace {

using Bytes = std::vector<std::byte>;
using Codes = std::vector<std::uint16_t>;

TEST(BitLoops, PackedBitsEqualTheReferenceAndComeBack) {
  std::mt19937 random(3);
  for (unsigned bits = 1; bits <= 16; ++bits) {
    for (const std::size_t size : {0u, 1u, 7u, 8u, 9u, 23u, 64u, 1001u}) {
      Codes codes(size);
      for (auto& code : codes) code = static_cast<std::uint16_t>(random() % (1u << bits));
      Bytes expected((size * bits + 7) / 8);
      reference::pack_bits(codes, bits, expected);
      std::uint16_t largest = 0;
      for (const auto code : codes) largest = std::max(largest, code);
      on_every_target([&] {
        Bytes packed(expected.size());
        pack_bits(codes, bits, packed);
        EXPECT_EQ(packed, expected) << bits << " bits, " << size;
        Codes back(size);
        EXPECT_EQ(unpack_bits(packed, bits, back), largest);
        EXPECT_EQ(back, codes) << bits << " bits, " << size;
      });
    }
  }
}

TEST(BitLoops, LengthsThatDoNotFitAreABug) {
  Codes codes(64);
  Bytes three(3);
  EXPECT_THROW(pack_bits(codes, 10, three), BrokenInvariant);
  EXPECT_THROW((void)unpack_bits(three, 10, codes), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::kernels::bit_loops_test
