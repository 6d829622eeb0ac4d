#include "thinreduce/methods/quantize/dither.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/test_data.h"

namespace thinreduce::kernels::dither_test {
namespace {

using Codes = std::vector<std::uint32_t>;

constexpr RandomKey kKey{0x12345678, 0x9abcdef0};
constexpr std::uint32_t kFirsts[] = {0, 1, 15, 16, 17, 31, 32, 1000003};

TEST(Dither, IsInsideTheOpenIntervalAndSymmetric) {
  float min = 1, max = -1;
  double sum = 0;
  for (std::uint32_t i = 0; i < 1 << 20; ++i) {
    const float u = dither(kKey, i);
    min = std::min(min, u);
    max = std::max(max, u);
    sum += u;
  }
  EXPECT_EQ(min, -0.5f + 1.0f / 131072);
  EXPECT_EQ(max, 0.5f - 1.0f / 131072);
  EXPECT_LT(std::abs(sum), 5 * std::sqrt((1 << 20) / 12.0));
}

TEST(Dither, QuantizeOnEveryTarget) {
  at_every_size([](std::size_t size, std::size_t offset) {
    auto values = mixed_floats(size, 5);
    for (const std::uint32_t levels_per_side : {1u, 3u, 127u}) {
      for (const auto first : kFirsts) {
        const QuantizeRun run{static_cast<float>(levels_per_side) / 3, levels_per_side, kKey,
                              first};
        Codes expected(size);
        reference::quantize(values, run, expected);
        for (std::size_t i = 0; i < size; ++i) ASSERT_LE(expected[i], 2 * levels_per_side);
        on_every_target([&] {
          Guarded<float> in(std::span<const float>(values), offset);
          Guarded<std::uint32_t> codes(size, offset);
          quantize(in.span(), run, codes.span());
          ASSERT_TRUE(codes.intact());
          ASSERT_TRUE(std::ranges::equal(codes.span(), expected));
        });
      }
    }
  });
}

TEST(Dither, DequantizeOnEveryTarget) {
  const std::vector<RandomKey> keys{kKey, {1, 2}, {3, 4}, {0, 0}, {7, 7}};
  at_every_size([&](std::size_t size, std::size_t offset) {
    Codes codes(size);
    for (std::size_t i = 0; i < size; ++i) codes[i] = random_bits(kKey, 77 + i) % 31;
    for (const std::size_t ranks : {0u, 1u, 2u, 5u}) {
      for (const auto first : kFirsts) {
        const DequantizeRun run{0.37f, 15, std::span(keys).first(ranks), first};
        std::vector<float> expected(size);
        reference::dequantize(codes, run, expected);
        on_every_target([&] {
          Guarded<std::uint32_t> in(std::span<const std::uint32_t>(codes), offset);
          Guarded<float> values(size, offset);
          dequantize(in.span(), run, values.span());
          ASSERT_TRUE(values.intact());
          ASSERT_TRUE(same_bits<float>(values.span(), expected));
        });
      }
    }
  });
}

// The formula in the header, in double precision.
TEST(Dither, DequantizeSubtractsTheDitherOfAllRanks) {
  const std::vector<RandomKey> keys{kKey, {1, 2}, {3, 4}};
  Codes codes(1000);
  for (std::uint32_t i = 0; i < codes.size(); ++i) codes[i] = i % 19;
  std::vector<float> values(codes.size());
  dequantize(codes, {0.25f, 9, keys, 40}, values);
  for (std::uint32_t i = 0; i < codes.size(); ++i) {
    double exact = static_cast<double>(codes[i]) - 9;
    for (const auto& key : keys) exact -= dither(key, 40 + i);
    ASSERT_EQ(values[i], static_cast<float>(0.25 * exact));
  }
}

}  // namespace
}  // namespace thinreduce::kernels::dither_test
