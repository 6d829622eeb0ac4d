#include "thinreduce/wire/entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/random_data.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/checksum.h"
#include "thinreduce/wire/random.h"

namespace thinreduce::entropy_test {
namespace {

using Symbols = std::vector<std::uint8_t>;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kNoLimit = 1u << 30;

// Returns normal values quantized around the alphabet's middle, like quantized gradients.
Symbols bell_symbols(std::size_t size, std::uint32_t alphabet, double width, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, width);
  Symbols symbols(size);
  for (auto& symbol : symbols) {
    const double most = (alphabet - 1) / 2.0;
    symbol =
        static_cast<std::uint8_t>(std::clamp(std::round(normal(random) + most), 0.0, 2 * most));
  }
  return symbols;
}

double entropy_bits(const Symbols& symbols) {
  std::vector<double> counts(256);
  for (const auto symbol : symbols) ++counts[symbol];
  double bits = 0;
  for (const double count : counts) {
    if (count > 0) bits += count * std::log2(static_cast<double>(symbols.size()) / count);
  }
  return bits;
}

Bytes encoded(const Symbols& symbols, std::uint32_t alphabet) {
  Bytes bytes;
  EntropyCoder coder(alphabet);
  EXPECT_TRUE(coder.encode(symbols, kNoLimit, bytes));
  return bytes;
}

std::size_t kinds_of(std::uint32_t alphabet) {
  std::size_t kinds = 1;
  while (kinds * alphabet <= 256) kinds *= alphabet;
  return kinds;
}

TEST(Entropy, ComesBack) {
  for (const std::uint32_t alphabet : {2u, 3u, 4u, 5u, 7u, 15u, 16u, 17u, 31u, 255u, 256u}) {
    for (const std::size_t size : {256u, 257u, 259u, 1009u, 4099u, 100003u}) {
      for (const double width : {0.01, 0.7, alphabet / 4.0, 100.0}) {
        SCOPED_TRACE(testing::Message() << alphabet << " symbols, " << size << ", " << width);
        const auto symbols = bell_symbols(size, alphabet, width, 1);
        const auto bytes = encoded(symbols, alphabet);
        Symbols back(size);
        EntropyCoder(alphabet).decode(bytes, "test", back);
        ASSERT_EQ(back, symbols);
      }
    }
  }
}

// The size is within a hundredth of the symbols' entropy and the table, which is longest if all
// kinds are as frequent.
TEST(Entropy, SizeIsTheEntropyAndTheTable) {
  for (const std::uint32_t alphabet : {3u, 7u, 15u}) {
    for (const double width : {0.3, 0.6, 1.0, alphabet / 6.0, alphabet / 3.0}) {
      const auto symbols = bell_symbols(1 << 18, alphabet, width, 2);
      const auto bytes = encoded(symbols, alphabet);
      const double ideal = entropy_bits(symbols) / 8;
      const auto kinds = static_cast<double>(kinds_of(alphabet));
      const double table = 2 * kinds * std::log2(1 + 4096 / kinds) / 8 + kinds / 8;
      EXPECT_LT(static_cast<double>(bytes.size()), 1.01 * ideal + table)
          << alphabet << " symbols of width " << width;
      EXPECT_GT(static_cast<double>(bytes.size()), 0.98 * ideal);
    }
  }
}

// Other bytes are another wire format: docs/wire-format.md must say so.
TEST(Entropy, GoldenBytes) {
  Symbols symbols(1000);
  for (std::uint32_t i = 0; i < symbols.size(); ++i) {
    symbols[i] = static_cast<std::uint8_t>(std::popcount(random_bits({1, 2}, i) & 63));
  }
  const auto bytes = encoded(symbols, 7);
  EXPECT_EQ(bytes.size(), 366u);
  EXPECT_EQ(checksum(bytes), 7030095471882224731u);
}

TEST(Entropy, OneKindOfSymbolCostsNothing) {
  const auto bytes = encoded(Symbols(1 << 18, 3), 7);
  EXPECT_LT(bytes.size(), 60u);
  Symbols back(1 << 18);
  EntropyCoder(7).decode(bytes, "test", back);
  EXPECT_EQ(back, Symbols(1 << 18, 3));
}

// A message to one of many owners is so short.
TEST(Entropy, TheTableOfAShortRunIsSmall) {
  const auto symbols = bell_symbols(1 << 14, 3, 0.6, 4);
  EXPECT_LT(static_cast<double>(encoded(symbols, 3).size()), entropy_bits(symbols) / 8 + 280);
}

TEST(Entropy, DeclinesWhatDoesNotPay) {
  Bytes bytes{std::byte{1}};
  EntropyCoder coder(7);
  EXPECT_FALSE(coder.encode(bell_symbols(255, 7, 0.1, 3), kNoLimit, bytes));
  EXPECT_FALSE(coder.encode(bell_symbols(10000, 7, 100, 3), 10000 / 8, bytes));
  EXPECT_EQ(bytes.size(), 1u);
  EXPECT_TRUE(coder.encode(bell_symbols(10000, 7, 0.5, 3), 3750, bytes));
}

std::string refusal(const Bytes& bytes, std::uint32_t alphabet, std::size_t size) {
  Symbols symbols(size);
  try {
    EntropyCoder(alphabet).decode(bytes, "codes of rank 3", symbols);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_frame);
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 3"));
    return error.what();
  }
  for (const auto symbol : symbols) EXPECT_LT(symbol, alphabet);
  return "accepted";
}

TEST(Entropy, EveryCutAndAddedByteIsRefused) {
  const auto good = encoded(bell_symbols(1009, 7, 1, 4), 7);
  EXPECT_EQ(refusal(good, 7, 1009), "accepted");
  for (std::size_t length = 0; length < good.size(); ++length) {
    const Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length));
    ASSERT_NE(refusal(cut, 7, 1009), "accepted") << length;
  }
  Bytes longer = good;
  longer.insert(longer.end(), 2, std::byte{});
  EXPECT_NE(refusal(longer, 7, 1009), "accepted");
  EXPECT_NE(refusal(good, 7, 1011), "accepted");
  EXPECT_NE(refusal(good, 7, 900), "accepted");
}

// Thousands of altered inputs: the decoder throws Error or returns symbols of the alphabet.
TEST(Entropy, HostileBytes) {
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 6000; ++round) {
    const std::uint32_t alphabet = std::array{2u, 3u, 7u, 15u, 100u, 255u}[random() % 6];
    const std::size_t size = 256 + random() % 700;
    Bytes bytes = encoded(bell_symbols(size, alphabet, alphabet / 5.0, random()), alphabet);
    damage(bytes, 1 + random() % 3, random);
    const Bytes exact(bytes.begin(), bytes.end());
    if (refusal(exact, alphabet, size) != "accepted") ++refused;
  }
  EXPECT_GT(refused, 5500);
}

}  // namespace
}  // namespace thinreduce::entropy_test
