#include "thinreduce/methods/quantize/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/test_data.h"

namespace thinreduce::kernels::pack_test {
namespace {

using Codes = std::vector<std::uint32_t>;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kSymbols[] = {1,  2,  3,  4,  5,  7,   8,   9,   13,  15,    16,
                                      19, 25, 33, 64, 73, 128, 255, 256, 257, 15361, 65536};
// Numbers of codes: whole rows that end before, at and after every kind of group.
constexpr std::size_t kRowCounts[] = {0, 1, 2, 9, 10, 11, 19, 20, 21, 31, 32, 33, 64, 160, 161};

Codes random_codes(std::size_t size, std::uint32_t symbols, unsigned seed) {
  std::mt19937 random(seed);
  Codes codes(size);
  for (auto& code : codes) code = random() % symbols;
  return codes;
}

Bytes packed(const Codes& codes, const Packing& packing) {
  Bytes bytes(packing.bytes(codes.size()));
  pack(codes, packing, bytes);
  return bytes;
}

// Every target writes the same bytes and reads the codes back, at any address.
TEST(Pack, ComesBackOnEveryTarget) {
  const auto before = active_target();
  for (const auto symbols : kSymbols) {
    const Packing packing = Packing::of(symbols);
    for (const auto rows : kRowCounts) {
      SCOPED_TRACE(testing::Message() << symbols << " symbols, " << rows << " rows");
      const Codes codes = random_codes(rows * kPackRow, symbols, symbols);
      use_target("reference");
      const Bytes expected = packed(codes, packing);
      on_every_target([&] {
        for (const auto offset : kOffsets) {
          Guarded<std::byte> bytes(expected.size(), offset);
          pack(codes, packing, bytes.span());
          ASSERT_TRUE(bytes.intact());
          ASSERT_TRUE(std::ranges::equal(bytes.span(), expected));
          Guarded<std::uint32_t> back(codes.size(), offset);
          const auto largest = unpack(bytes.span(), packing, back.span());
          ASSERT_TRUE(back.intact());
          ASSERT_TRUE(std::ranges::equal(back.span(), codes));
          if (packing.bits > 0 && !codes.empty()) {
            ASSERT_EQ(largest, *std::max_element(codes.begin(), codes.end()));
          }
          ASSERT_LT(largest, std::max(symbols, 2u));
        }
      });
    }
  }
  use_target(before);
}

// Bytes of kCodesPerPack codes: as few as the width allows.
TEST(Pack, UsesTheBytesThatItSays) {
  const auto bits = [](std::uint32_t symbols) {
    return static_cast<double>(Packing::of(symbols).bytes(kCodesPerPack) * 8) / kCodesPerPack;
  };
  EXPECT_EQ(bits(3), 1.6);
  EXPECT_EQ(bits(9), 3.2);
  EXPECT_EQ(bits(2), 1);
  EXPECT_EQ(bits(7), 3);
  EXPECT_EQ(bits(13), 4);
  EXPECT_EQ(bits(25), 5);
  EXPECT_EQ(bits(255), 8);
  EXPECT_EQ(Packing::of(7).bytes(1), 64u);
  EXPECT_EQ(Packing::of(7).bytes(0), 0u);
}

// The layout that docs/wire-format.md gives.
TEST(Pack, Layout) {
  Codes codes(4 * kPackRow);
  codes[0] = 5;
  codes[16] = 2;
  codes[17] = 7;
  const Bytes bits = packed(codes, Packing::of(8));
  EXPECT_EQ(std::to_integer<int>(bits[0]), 5 | 2 << 3);
  EXPECT_EQ(std::to_integer<int>(bits[4]), 7 << 3);
  const Bytes digits = packed(codes, Packing::of(9));
  EXPECT_EQ(std::to_integer<int>(digits[0]), 5 + 2 * 9);
  EXPECT_EQ(std::to_integer<int>(digits[4]), 7 * 9);
}

// Tries the division by multiplication with every 16-bit value.
TEST(Pack, DigitsOfEveryWord) {
  on_every_target([&] {
    for (const std::uint32_t radix : {3u, 9u}) {
      const Packing packing = Packing::of(radix);
      const std::uint32_t max = 59048;  // 3^10 - 1 and 9^5 - 1
      Bytes bytes(64);
      Codes codes(2 * packing.digits * kPackRow);
      for (std::uint32_t value = 0; value < 65536; value += 16) {
        for (std::uint32_t column = 0; column < 16; ++column) {
          const std::uint32_t half = value + column;
          const std::uint32_t word = half | (65535 - half) << 16;
          std::memcpy(&bytes[column * 4], &word, 4);
        }
        const auto largest = unpack(bytes, packing, codes);
        EXPECT_EQ(largest >= radix, value + 15 > max || 65535 - value > max);
        for (std::uint32_t column = 0; column < 16; ++column) {
          std::uint32_t halves[2] = {value + column, 65535 - value - column};
          for (std::uint32_t digit = 0; digit < 2 * packing.digits; ++digit) {
            auto& half = halves[digit / packing.digits];
            ASSERT_EQ(codes[digit * kPackRow + column], half % radix);
            half /= radix;
          }
        }
      }
    }
  });
}

TEST(Pack, AddsOnEveryTarget) {
  at_every_size([](std::size_t size, std::size_t offset) {
    const Codes a = random_codes(size, 1000, 1), b = random_codes(size, 1000, 2);
    on_every_target([&] {
      Guarded<std::uint32_t> sum(std::span<const std::uint32_t>(a), offset);
      add_codes(sum.span(), b);
      ASSERT_TRUE(sum.intact());
      for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(sum.span()[i], a[i] + b[i]);
    });
  });
}

}  // namespace
}  // namespace thinreduce::kernels::pack_test
