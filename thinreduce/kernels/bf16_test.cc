#include "thinreduce/kernels/bf16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/test_data.h"

namespace thinreduce::kernels::bf16_test {
namespace {

using Words = std::vector<std::uint16_t>;

float as_float(std::uint16_t word) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(word) << 16);
}

bool is_nan(std::uint16_t word) {
  return (word & 0x7f80) == 0x7f80 && (word & 0x7f) != 0;
}

Words all_words() {
  Words words(65536);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint16_t>(i);
  return words;
}

Words encoded(const std::vector<float>& values) {
  Words words(values.size());
  to_bf16(values, words);
  return words;
}

TEST(Bf16, EveryValueComesBack) {
  on_every_target([] {
    const auto words = all_words();
    std::vector<float> floats(words.size());
    from_bf16(words, 1.0f, floats);
    const auto back = encoded(floats);
    for (std::size_t i = 0; i < words.size(); ++i) {
      ASSERT_EQ(back[i], is_nan(words[i]) ? 0x7fc0 : words[i]);
    }
  });
}

// Tests three points between each bf16 value and its neighbour: just below the middle, the middle,
// just above it.
TEST(Bf16, TiesGoToEvenEverywhere) {
  std::vector<float> under, middle, over;
  for (std::uint32_t word = 0; word < 65536; ++word) {
    const auto bits = word << 16;
    if (!std::isfinite(std::bit_cast<float>(bits))) continue;
    under.push_back(std::bit_cast<float>(bits | 0x7fff));
    middle.push_back(std::bit_cast<float>(bits | 0x8000));
    over.push_back(std::bit_cast<float>(bits | 0x8001));
  }
  const auto words_under = encoded(under);
  const auto words_middle = encoded(middle);
  const auto words_over = encoded(over);
  for (std::size_t i = 0; i < under.size(); ++i) {
    const auto word = std::bit_cast<std::uint32_t>(under[i]) >> 16;
    ASSERT_EQ(words_under[i], word);
    ASSERT_EQ(words_over[i], word + 1);
    ASSERT_EQ(words_middle[i], word + (word & 1));
  }
}

// Returns the nearer of the two neighbours, by exact distances in double.
TEST(Bf16, NearestByDoublePrecision) {
  const auto values = mixed_floats(200000, 5);
  const auto words = encoded(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::abs(values[i]) >= 0x1.ffp127f) continue;
    const double exact = values[i];
    const double error = std::abs(as_float(words[i]) - exact);
    for (const int step : {-1, 1}) {
      const auto other = static_cast<std::uint16_t>(words[i] + step);
      if (is_nan(other) || std::signbit(as_float(other)) != std::signbit(values[i])) continue;
      ASSERT_LE(error, std::abs(as_float(other) - exact)) << values[i];
    }
  }
}

TEST(Bf16, HugeBecomesInfinity) {
  const float first_inf = 0x1.ffp127f;
  const auto words = encoded(
      {first_inf, -first_inf, std::nextafter(first_inf, 0.0f), std::numeric_limits<float>::max()});
  EXPECT_EQ(words, (Words{0x7f80, 0xff80, 0x7f7f, 0x7f80}));
}

TEST(Bf16, NanStaysInItsPlace) {
  on_every_target([] {
    for (const std::uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xffc00000u}) {
      std::vector<float> values(37, 1.0f);
      values[11] = std::bit_cast<float>(bits);
      Words expected(37, 0x3f80);
      expected[11] = 0x7fc0;
      EXPECT_EQ(encoded(values), expected);
    }
  });
}

TEST(Bf16, AddKeepsAllBitsOfTheSum) {
  const Words in(9, 0x3f80);
  std::vector<float> sum(9, 0x1p-8f + 0x1p-20f);
  add_bf16(in, sum);
  EXPECT_EQ(sum, std::vector<float>(9, 1 + 0x1p-8f + 0x1p-20f));
}

TEST(Bf16, EqualTheReferenceOnEveryTarget) {
  on_every_target([] {
    at_every_size([](std::size_t size, std::size_t offset) {
      const auto values = mixed_floats(size, 6);
      Guarded<float> in(std::span<const float>(values), offset);
      Guarded<std::uint16_t> words(size, offset);
      to_bf16(in.span(), words.span());
      Words expected(size);
      reference::to_bf16(values, expected);
      EXPECT_TRUE(same_bits<std::uint16_t>(words.span(), expected));
      EXPECT_TRUE(words.intact());

      Guarded<float> back(size, offset);
      from_bf16(words.span(), 1 / 3.0f, back.span());
      std::vector<float> expected_back(size);
      reference::from_bf16(expected, 1 / 3.0f, expected_back);
      EXPECT_TRUE(same_bits<float>(back.span(), expected_back));
      EXPECT_TRUE(back.intact());

      const auto more = mixed_floats(size, 7);
      Guarded<float> sum(std::span<const float>(more), offset);
      std::vector<float> expected_sum = more;
      reference::add_bf16(expected, expected_sum);
      add_bf16(words.span(), sum.span());
      EXPECT_TRUE(same_bits<float>(sum.span(), expected_sum));
      EXPECT_TRUE(sum.intact());
    });
  });
}

}  // namespace
}  // namespace thinreduce::kernels::bf16_test
