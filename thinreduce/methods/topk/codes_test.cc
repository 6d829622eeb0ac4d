#include "thinreduce/methods/topk/codes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "tests/random_data.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce::codes_test {
namespace {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

struct Coded {
  Bytes payload;
  Floats sent;  // per element of the bucket
};

// Codes random values at random places, up to `fullness` of what a chunk may send.
Coded random_codes(const TopKChunkShape& shape, double fullness, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Coded coded;
  coded.sent.resize(shape.elements);
  std::vector<Bytes> blocks(shape.blocks());
  TopKCodeWriter writer;
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    BitWriter bits(blocks[block]);
    const Range own = shape.block(block);
    for (std::size_t first = own.begin; first < own.end; first += shape.chunk) {
      const std::size_t length = std::min(shape.chunk, own.end - first);
      const std::size_t wanted = shape.values_of(length);
      std::vector<std::uint32_t> offsets(length);
      std::iota(offsets.begin(), offsets.end(), 0U);
      std::ranges::shuffle(offsets, random);
      offsets.resize(static_cast<std::size_t>(fullness * static_cast<double>(wanted)));
      std::ranges::sort(offsets);
      Floats values, sent;
      for (std::size_t i = 0; i < offsets.size(); ++i) {
        const float value = normal(random);
        values.push_back(value < 0 ? value - 2 : value + 2);
      }
      writer.write(offsets, values, length, wanted, bits, sent);
      EXPECT_EQ(sent.size(), offsets.size());
      for (std::size_t i = 0; i < sent.size(); ++i) {
        coded.sent[first + offsets[i]] = sent[i];
        EXPECT_EQ(std::signbit(sent[i]), std::signbit(values[i]));
        EXPECT_NEAR(sent[i], values[i], 4);  // the largest of 200,000 is 6.3
      }
    }
    bits.finish();
  }
  join_topk_codes(blocks, coded.payload);
  return coded;
}

Floats read(const Bytes& payload, const TopKChunkShape& shape) {
  Floats sum(shape.elements);
  const TopKCodeReader reader(payload, 3, shape);
  for (std::size_t block = 0; block < shape.blocks(); ++block) reader.add(block, sum);
  return sum;
}

TEST(TopKCodes, ComeBackAtEverySize) {
  for (const std::size_t elements : {1U, 2U, 64U, 1009U, 4096U, 4097U, 65536U, 200003U}) {
    for (const std::size_t chunk : {64U, 1000U, 4096U, 100000U}) {
      for (const double density : {1e-4, 0.0156, 0.3, 1.0}) {
        const TopKChunkShape shape{.elements = elements, .chunk = chunk, .density = density};
        for (const double fullness : {1.0, 0.5, 0.0}) {
          const Coded coded = random_codes(shape, fullness, 1);
          EXPECT_LE(coded.payload.size(), topk_code_limit(shape));
          EXPECT_EQ(read(coded.payload, shape), coded.sent);
        }
      }
    }
  }
}

// 12 bits of position and 2 of value would be 0.219 bit per element without the magnitudes; the
// entropy of the positions alone is 0.116.
TEST(TopKCodes, TakeAtMost016BitPerElement) {
  const TopKChunkShape shape{.elements = 1 << 20, .chunk = 4096, .density = 0.0156};
  const Coded coded = random_codes(shape, 1, 2);
  const double bits = 8.0 * static_cast<double>(coded.payload.size()) / (1 << 20);
  EXPECT_LE(bits, 0.16);
  EXPECT_GT(bits, 0.116 + 2 * 0.0156);
  RecordProperty("bits_per_element", std::to_string(bits));
}

// The two magnitudes are the means of the small and of the large ones.
TEST(TopKCodes, TwoMagnitudesPerChunk) {
  Bytes block;
  BitWriter bits(block);
  Floats sent;
  TopKCodeWriter().write(std::vector<std::uint32_t>{3, 5, 90, 99},
                         Floats{1.0F, -1.5F, 8.0F, -10.0F}, 100, 4, bits, sent);
  EXPECT_EQ(sent, (Floats{1.25F, -1.25F, 9.0F, -9.0F}));
}

std::string refusal(const Bytes& payload, const TopKChunkShape& shape) {
  try {
    (void)read(payload, shape);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_frame);
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 3"));
    return error.what();
  }
  return "accepted";
}

TEST(TopKCodes, RefuseWhatIsWrong) {
  const TopKChunkShape shape{.elements = 100, .chunk = 100, .density = 0.04};
  const auto coded = [&](const std::function<void(BitWriter&)>& write) {
    std::vector<Bytes> blocks(1);
    BitWriter bits(blocks[0]);
    write(bits);
    bits.finish();
    Bytes payload;
    join_topk_codes(blocks, payload);
    return refusal(payload, shape);
  };
  using testing::HasSubstr;
  EXPECT_EQ(coded([](BitWriter& bits) { bits.put_unary(4); }), "accepted");
  EXPECT_THAT(coded([](BitWriter& bits) { bits.put_unary(5); }), HasSubstr("more than 4 values"));
  const auto magnitudes = [&](std::uint64_t low, std::uint64_t high) {
    return coded([&](BitWriter& bits) {
      bits.put_unary(3);
      bits.put(low, 16);
      bits.put(high, 16);
      bits.put(1, 1);  // quotient 0
      bits.put(0, 4);  // 0.7 of the mean gap 25 is above 16
      bits.put(0, 2);
    });
  };
  EXPECT_EQ(magnitudes(0x3f80, 0x4000), "accepted");
  EXPECT_THAT(magnitudes(0x7f80, 0x4000), HasSubstr("a magnitude is inf"));
  EXPECT_THAT(magnitudes(0x3f80, 0x7fc0), HasSubstr("a magnitude is nan"));
  EXPECT_THAT(magnitudes(0xbf80, 0x4000), HasSubstr("not be negative"));
  EXPECT_THAT(coded([](BitWriter& bits) {
                bits.put_unary(2);
                bits.put(0x3f803f80, 32);
                bits.put_unary(6);  // 6 * 16 + 3 = 99, the last
                bits.put(3, 4);
                bits.put(0, 2);
                bits.put_unary(0);
                bits.put(0, 6);
              }),
              HasSubstr("outside its chunk of 100 elements"));
  EXPECT_THAT(refusal(Bytes(3), shape), HasSubstr("is cut"));
  EXPECT_THAT(refusal(Bytes(6), shape), HasSubstr("bytes too many"));
}

// Thousands of altered and cut payloads: an Error, or a sum that is finite.
TEST(TopKCodes, HostileBytes) {
  std::mt19937 random(2);
  int refused = 0, accepted = 0;
  for (int round = 0; round < 5000; ++round) {
    const TopKChunkShape shape{
        .elements = 1 + random() % 300, .chunk = 64 + random() % 100, .density = 0.1};
    Bytes payload = random_codes(shape, 1, random()).payload;
    damage(payload, random() % 4, random);
    const Bytes exact(payload.begin(), payload.end());
    try {
      for (const float value : read(exact, shape)) ASSERT_TRUE(std::isfinite(value));
      ++accepted;
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(error.code(), ErrorCode::bad_frame);
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 500);
}

}  // namespace
}  // namespace thinreduce::codes_test
