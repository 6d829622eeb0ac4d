#include "thinreduce/wire/rice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

namespace thinreduce::rice_test {
namespace {

// The definition, one bit at a time.
std::uint64_t read_bits(std::span<const std::byte> bytes, unsigned low, std::uint64_t& at) {
  const auto bit = [&] {
    const std::uint64_t byte = at / 8;
    const unsigned shift = at++ % 8;
    return byte < bytes.size() && (std::to_integer<unsigned>(bytes[byte]) >> shift & 1) != 0;
  };
  std::uint64_t value = 0;
  while (!bit()) value += std::uint64_t{1} << low;
  for (unsigned i = 0; i < low; ++i) value |= std::uint64_t{bit()} << i;
  return value;
}

TEST(Rice, CodesComeBack) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 2000; ++round) {
    const auto low = static_cast<unsigned>(random() % 32);
    std::vector<std::byte> bytes;
    BitWriter writer(bytes);
    const auto before = static_cast<unsigned>(random() % 9);
    writer.put(0, before);
    std::vector<std::uint64_t> written(random() % 100);
    for (auto& value : written) {
      const std::uint64_t quotient = random() % 20 == 0 ? random() % 100 : random() % 4;
      value = (quotient << low) + random() % (std::uint64_t{1} << low);
      put_rice(writer, value, low);
    }
    writer.finish();
    BitReader reader(bytes);
    reader.seek(before);
    RiceReader rice(reader, low, 1000);
    std::vector<std::uint64_t> values(written.size());
    std::uint64_t at = before;
    for (std::size_t i = 0; i < values.size(); i += RiceReader::kBatch) {
      const std::size_t count = std::min(RiceReader::kBatch, values.size() - i);
      rice.take(std::span(values).subspan(i, count));
      for (std::size_t k = 0; k < count; ++k) ASSERT_EQ(read_bits(bytes, low, at), written[i + k]);
    }
    rice.finish();
    ASSERT_EQ(values, written) << "low " << low;
    ASSERT_EQ(reader.bits_read(), at) << "low " << low;
  }
}

// Behind any bits, with quotients of any length.
TEST(Rice, SeveralCodesAreTheBitsOfSingleOnes) {
  std::mt19937 random(4);
  for (int round = 0; round < 2000; ++round) {
    const unsigned low = random() % 16;
    const unsigned before = random() % 32;
    std::vector<std::uint16_t> values(random() % 40);
    for (auto& value : values) {
      const std::uint32_t limit = random() % 8 == 0 ? 65536 : 2u << low;
      value = static_cast<std::uint16_t>(random() % std::min(limit, 65536u));
    }
    std::vector<std::byte> singly(5), together(5);
    BitWriter one(singly), all(together);
    std::size_t bits = 0;
    one.put(0, before);
    all.put(0, before);
    for (const unsigned value : values) {
      put_rice(one, value, low);
      bits += (value >> low) + 1 + low;
    }
    put_rice(all, values, low, bits);
    for (BitWriter* writer : {&one, &all}) {
      writer->put(5, 3);
      writer->finish();
    }
    ASSERT_EQ(together, singly) << "low " << low << ", " << before << " bits before";
  }
}

// Random bytes: codes longer than a word, and an end in the middle of a code.
TEST(Rice, ReadsAnyBytesByTheDefinitionAndZerosPastTheEnd) {
  std::mt19937_64 random(3);
  constexpr std::uint64_t kLimit = 500;
  int above = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::byte> bytes(random() % 200);
    const auto ones = random() % 4;
    for (auto& byte : bytes) {
      auto bits = random();
      if (ones != 0) bits &= random();
      byte = static_cast<std::byte>(bits);
      if (ones == 3 && random() % 20 != 0) byte = {};
    }
    const auto low = static_cast<unsigned>(random() % 13);
    std::uint64_t at = random() % 50;
    const std::vector<std::byte> exact = bytes;
    BitReader reader(exact);
    reader.seek(at);
    RiceReader rice(reader, low, kLimit);
    // So that the definition ends, a one follows after more zeros than the limit.
    bytes.insert(bytes.end(), 200, std::byte{});
    bytes.back() = std::byte{0x80};
    for (int batch = 0; batch < 20; ++batch) {
      std::array<std::uint64_t, RiceReader::kBatch> values{};
      const auto part = std::span(values).first(1 + random() % values.size());
      rice.take(part);
      bool ended = false;
      for (const std::uint64_t value : part) {
        const std::uint64_t expected = read_bits(bytes, low, at);
        ended = expected >> low > kLimit;
        if (ended) {
          ASSERT_GT(value >> low, kLimit);
          break;
        }
        ASSERT_EQ(value, expected) << "low " << low;
      }
      if (ended) {
        ++above;
        break;
      }
      rice.finish();
      ASSERT_EQ(reader.bits_read(), at);
    }
  }
  EXPECT_GT(above, 300);
}

}  // namespace
}  // namespace thinreduce::rice_test
