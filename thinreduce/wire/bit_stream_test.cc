#include "thinreduce/wire/bit_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "thinreduce/error.h"

namespace thinreduce::bit_stream_test {
namespace {

TEST(BitStream, NumbersComeBack) {
  std::mt19937_64 random(1);
  struct Item {
    std::uint64_t value;
    unsigned count;  // 100: unary
  };
  for (int round = 0; round < 50; ++round) {
    std::vector<Item> items(random() % 300);
    std::vector<std::byte> bytes(random() % 3, std::byte{0x5a});
    const std::size_t before = bytes.size();
    BitWriter writer(bytes);
    std::uint64_t bits = 0;
    for (auto& item : items) {
      item.count = random() % 4 == 0 ? 100 : static_cast<unsigned>(random() % 33);
      item.value = item.count == 100 ? random() % (random() % 10 == 0 ? 500 : 9)
                                     : random() & ((std::uint64_t{1} << item.count) - 1);
      bits += item.count == 100 ? item.value + 1 : item.count;
      item.count == 100 ? writer.put_unary(item.value) : writer.put(item.value, item.count);
    }
    writer.finish();
    EXPECT_EQ(bytes.size(), before + (bits + 7) / 8);
    BitReader reader(std::span<const std::byte>(bytes).subspan(before));
    for (const auto& item : items) {
      ASSERT_EQ(item.count == 100 ? reader.take_unary(1000) : reader.take(item.count), item.value);
    }
    EXPECT_EQ(reader.bits_read(), bits);
  }
}

TEST(BitStream, LowestBitFirst) {
  std::vector<std::byte> bytes;
  BitWriter writer(bytes);
  writer.put(0b101, 3);
  writer.put_unary(2);
  writer.put(0b11, 4);
  writer.finish();
  ASSERT_EQ(bytes.size(), 2u);
  EXPECT_EQ(std::to_integer<int>(bytes[0]), 0b11'100'101);
  EXPECT_EQ(std::to_integer<int>(bytes[1]), 0);
}

TEST(BitStream, PastTheEndAreZeros) {
  const std::vector<std::byte> bytes(3, std::byte{0xff});
  BitReader reader(bytes);
  EXPECT_EQ(reader.take(20), 0xfffffu);
  EXPECT_EQ(reader.take(20), 0xfu);
  EXPECT_GT(reader.take_unary(2000), 2000u);
  EXPECT_GT(reader.bits_read(), 24u);
}

TEST(BitStream, CodesComeBack) {
  std::mt19937 random(2);
  for (unsigned bits = 1; bits <= 16; ++bits) {
    for (const std::size_t count : {0u, 1u, 2u, 3u, 4u, 5u, 7u, 8u, 100u, 1009u}) {
      std::vector<std::uint16_t> codes(count);
      for (auto& code : codes) code = static_cast<std::uint16_t>(random() & ((1u << bits) - 1));
      std::vector<std::byte> bytes(3);
      pack_codes(codes, bits, bytes);
      ASSERT_EQ(bytes.size(), 3 + packed_bytes(count, bits));
      // On the heap with its exact length, so that a sanitizer sees a read past the end.
      const std::vector<std::byte> exact(bytes.begin() + 3, bytes.end());
      std::vector<std::uint16_t> back(count);
      const auto largest = unpack_codes(exact, bits, back);
      ASSERT_EQ(back, codes) << bits << " bits";
      EXPECT_EQ(largest, count == 0 ? 0 : *std::max_element(codes.begin(), codes.end()));
    }
  }
  std::vector<std::uint16_t> codes(3);
  EXPECT_THROW((void)unpack_codes(std::vector<std::byte>(3), 10, codes), BrokenInvariant);
}

// The writer of codes and the writer of bits agree on the format.
TEST(BitStream, CodesAreBits) {
  std::vector<std::uint16_t> codes{1, 1023, 512, 77, 3};
  std::vector<std::byte> packed, written;
  pack_codes(codes, 10, packed);
  BitWriter writer(written);
  for (const auto code : codes) writer.put(code, 10);
  writer.finish();
  EXPECT_EQ(packed, written);
}

}  // namespace
}  // namespace thinreduce::bit_stream_test
