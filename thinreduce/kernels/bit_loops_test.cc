#include "thinreduce/kernels/bit_loops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/test_data.h"
#include "thinreduce/error.h"

namespace thinreduce::kernels {
namespace {

using Bytes = std::vector<std::byte>;
using Places = std::vector<std::uint16_t>;

TEST(BitLoops, ListEqualsTheReference) {
  std::mt19937_64 random(1);
  for (const std::size_t words : {0u, 1u, 2u, 33u, 1024u}) {
    for (int density = 0; density < 5; ++density) {
      std::vector<std::uint64_t> bitmap(words);
      for (auto& word : bitmap) {
        word = density == 4 ? ~std::uint64_t{0} : random();
        for (int i = density; i < 3; ++i) word &= random();
      }
      Places expected(words * 64 + kListSlack);
      expected.resize(reference::list_bits(bitmap, expected));
      on_every_target([&] {
        Places found(words * 64 + kListSlack);
        found.resize(list_bits(bitmap, found));
        EXPECT_EQ(found, expected);
      });
    }
  }
}

TEST(BitLoops, PackedBitsEqualTheReferenceAndComeBack) {
  std::mt19937 random(3);
  for (unsigned bits = 1; bits <= 16; ++bits) {
    for (const std::size_t size : {0u, 1u, 7u, 8u, 9u, 23u, 64u, 1001u}) {
      Places codes(size);
      for (auto& code : codes) code = static_cast<std::uint16_t>(random() % (1u << bits));
      Bytes expected((size * bits + 7) / 8);
      reference::pack_bits(codes, bits, expected);
      std::uint16_t largest = 0;
      for (const auto code : codes) largest = std::max(largest, code);
      on_every_target([&] {
        Bytes packed(expected.size());
        pack_bits(codes, bits, packed);
        EXPECT_EQ(packed, expected) << bits << " bits, " << size;
        Places back(size);
        EXPECT_EQ(unpack_bits(packed, bits, back), largest);
        EXPECT_EQ(back, codes) << bits << " bits, " << size;
      });
    }
  }
}

TEST(BitLoops, LengthsThatDoNotFitAreABug) {
  Places places(64 + kListSlack - 1);
  EXPECT_THROW(list_bits(std::vector<std::uint64_t>(1), places), BrokenInvariant);
  Bytes three(3);
  EXPECT_THROW(pack_bits(places, 10, three), BrokenInvariant);
  EXPECT_THROW((void)unpack_bits(three, 10, places), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::kernels
