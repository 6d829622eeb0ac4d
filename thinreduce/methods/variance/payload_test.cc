#include "thinreduce/methods/variance/payload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/sanitized.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce::variance_payload_test {
namespace {

using Values = VarianceFormat::Values;
using Index = VarianceFormat::Index;

constexpr std::uint32_t kExponent = 127;  // of 1

TEST(Nibble, AllSixteenRoundTrip) {
  for (const std::uint32_t exponent : {8U, 100U, 127U, 227U}) {
    for (std::uint32_t nibble = 0; nibble < 16; ++nibble) {
      const float value = nibble_value(nibble, exponent);
      EXPECT_EQ(value, std::ldexp(nibble < 8 ? 1.0F : -1.0F,
                                  static_cast<int>(exponent - (nibble & 7U)) - 127));
      EXPECT_EQ(nibble_of(value, exponent), nibble);
    }
  }
}

TEST(Nibble, RoundsToTheNearerPowerAndCutsAtTheLargest) {
  EXPECT_EQ(nibble_of(1.99F, kExponent), 0);   // cut to 1
  EXPECT_EQ(nibble_of(-1.99F, kExponent), 8);  // and its sign kept
  EXPECT_EQ(nibble_of(0.75F, kExponent), 0);   // half way goes up
  EXPECT_EQ(nibble_of(std::nextafter(0.75F, 0.0F), kExponent), 1);
  EXPECT_EQ(nibble_of(-0.3F, kExponent), 8 + 2);
}

// Below 3/4 of 2^-7 the nearer power is 2^-8, which has no code: not sent.
TEST(Nibble, SevenStepsAreSentAndEightAreNot) {
  const float edge = 0.75F * 0x1p-7F;
  EXPECT_EQ(nibble_of(0x1p-7F, kExponent), 7);
  EXPECT_EQ(nibble_of(edge, kExponent), 7);
  EXPECT_EQ(nibble_of(-edge, kExponent), 15);
  EXPECT_EQ(nibble_of(std::nextafter(edge, 0.0F), kExponent), kNotSent);
  EXPECT_EQ(nibble_of(0x1p-8F, kExponent), kNotSent);
  EXPECT_EQ(nibble_of(0, kExponent), kNotSent);
  // Subnormal powers of two have no code.
  EXPECT_EQ(nibble_of(0x1p-126F, 3), 2);
  EXPECT_EQ(nibble_of(0x1p-128F, 3), kNotSent);
  EXPECT_EQ(nibble_of(0x1p-128F, 0), kNotSent);
}

TEST(Nibble, RelativeErrorIsAtMostAThird) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(0.75F * 0x1p-7F, 1.0F);
  for (int i = 0; i < 20000; ++i) {
    const float value = uniform(random);
    const std::uint8_t nibble = nibble_of(value, kExponent);
    ASSERT_NE(nibble, kNotSent);
    ASSERT_LE(std::abs(nibble_value(nibble, kExponent) - value), value * (1.0F / 3) * 1.0001F);
  }
}

const std::vector<VarianceTensor> kTensors{{10, 1000}, {1010, 0}, {1020, 70000}, {71020, 1}};
constexpr std::size_t kElements = 71030;

// Draws elements, each with the given probability; `truth` gets the values that they stand for.
VarianceSent random_sent(const VarianceFormat& format, double chance, std::vector<float>& truth) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform;
  VarianceSent sent;
  truth.assign(kElements, 0.0F);
  for (std::size_t t = 0; t < kTensors.size(); ++t) {
    VarianceSent::Part part;
    const auto exponent = static_cast<std::uint32_t>(120 + t);
    for (std::size_t i = 0; i < kTensors[t].elements; ++i) {
      if (uniform(random) >= chance) continue;
      const auto index = static_cast<std::uint32_t>(kTensors[t].offset + i);
      const std::uint32_t code = random() % 16;
      ++part.count;
      sent.indices.push_back(index);
      if (format.values == Values::whole) {
        sent.values.push_back(static_cast<float>(uniform(random)));
        truth[index] = sent.values.back();
      } else if (format.values == Values::sign) {
        sent.codes.push_back(static_cast<std::uint8_t>(code & 8U));
        truth[index] = (code & 8U) == 0 ? format.tau : -format.tau;
      } else {
        sent.codes.push_back(static_cast<std::uint8_t>(code));
        truth[index] = nibble_value(code, exponent);
      }
    }
    if (format.values == Values::nibble && part.count > 0) part.exponent = exponent;
    sent.parts.push_back(part);
  }
  return sent;
}

std::vector<VarianceFormat> formats() {
  std::vector<VarianceFormat> all;
  for (const auto values : {Values::nibble, Values::sign, Values::whole}) {
    for (const auto index : {Index::words, Index::compact}) {
      all.push_back({.values = values, .index = index, .tau = 0.25F});
    }
  }
  return all;
}

// The payloads of all ranks when only `rank` sends anything.
std::vector<std::span<const std::byte>> one_rank(std::span<const std::byte> payload, int rank = 0) {
  std::vector<std::span<const std::byte>> payloads(static_cast<std::size_t>(rank) + 1);
  payloads.back() = payload;
  return payloads;
}

TEST(VariancePayload, AddsWhatWasWrittenInEveryForm) {
  for (const VarianceFormat& format : formats()) {
    const VariancePayload codec(format, kTensors);
    for (const double chance : {0.0002, 0.01, 0.3, 1.0}) {
      std::vector<float> truth;
      const VarianceSent sent = random_sent(format, chance, truth);
      std::vector<std::byte> payload(3);
      codec.write(sent, payload);
      EXPECT_LE(payload.size(), codec.limit());
      // Earlier values are replaced inside the tensors and unchanged elsewhere.
      std::vector<float> sum(kElements, 1.0F);
      std::vector<float> expected(kElements, 1.0F);
      for (const VarianceTensor& tensor : kTensors) {
        for (std::size_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i) {
          expected[i] = truth[i] * 0.5F;
        }
      }
      codec.add_up(one_rank(payload), 0.5F, sum);
      ASSERT_EQ(sum, expected);
    }
  }
}

TEST(VariancePayload, NothingToSendIsEmpty) {
  for (const VarianceFormat& format : formats()) {
    const VariancePayload codec(format, kTensors);
    VarianceSent sent;
    sent.parts.resize(kTensors.size());
    std::vector<std::byte> payload(5);
    codec.write(sent, payload);
    EXPECT_TRUE(payload.empty());
    std::vector<float> sum(kElements);
    codec.add_up(one_rank(payload), 1, sum);
    EXPECT_EQ(sum, std::vector<float>(kElements));
  }
}

// Float addition depends on the order: every element must add the ranks in rank order.
TEST(VariancePayload, RanksAreAddedInTheirOrder) {
  for (const VarianceFormat& format : formats()) {
    const VariancePayload codec(format, kTensors);
    std::vector<std::vector<std::byte>> bytes;
    std::vector<float> expected(kElements, 0.0F);
    for (const double chance : {0.3, 0.0, 0.002, 1.0, 0.05}) {
      std::vector<float> truth;
      codec.write(random_sent(format, chance, truth), bytes.emplace_back());
      for (std::size_t i = 0; i < kElements; ++i) expected[i] += truth[i] * 0.2F;
    }
    EXPECT_TRUE(bytes[1].empty());
    std::vector<float> sum(kElements);
    codec.add_up({{bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]}}, 0.2F, sum);
    ASSERT_EQ(sum, expected);
  }
}

// The words cost 4 bytes; gaps of 1 % take about 8.5 bits, values 4.
TEST(VariancePayload, CompactIsSmallerThanWordsAtEveryDensity) {
  std::vector<float> truth;
  for (const double chance : {0.0005, 0.01, 0.1, 0.5, 1.0}) {
    std::vector<std::byte> words, compact;
    const auto sent = random_sent({}, chance, truth);
    VariancePayload({.index = Index::words}, kTensors).write(sent, words);
    VariancePayload({.index = Index::compact}, kTensors).write(sent, compact);
    EXPECT_EQ(words.size(), 8 * kTensors.size() + 4 * sent.indices.size());
    EXPECT_LT(static_cast<double>(compact.size() - 32),
              0.75 * static_cast<double>(words.size() - 32));
    if (chance == 0.01) {
      EXPECT_LT(static_cast<double>(compact.size()) * 8,
                13.5 * static_cast<double>(sent.indices.size()));
    }
  }
}

// The largest index of 28 bits; the sender does not allocate such a tensor.
TEST(VariancePayload, TheLargestIndexOfAWord) {
  const VariancePayload codec({.index = Index::words}, {{0, kMaxWordElements}});
  VarianceSent sent;
  sent.indices = {static_cast<std::uint32_t>(kMaxWordElements - 1)};
  sent.codes = {9};
  sent.parts = {{1, kExponent}};
  std::vector<std::byte> payload;
  codec.write(sent, payload);
  ASSERT_EQ(payload.size(), 12U);
  // bytes: index in the low 28 bits, then distance 1, then the sign
  EXPECT_EQ(payload[8], std::byte{0xFF});
  EXPECT_EQ(payload[11], std::byte{0x9F});
  EXPECT_THROW(VariancePayload({.index = Index::words}, {{0, kMaxWordElements + 1}}),
               BrokenInvariant);
}

// Any bytes from a peer give an error that names it, or finite values; never a crash or a hang.
TEST(VariancePayload, MutatedPayloadsAreRefusedOrHarmless) {
  std::mt19937 random(5);
  for (const VarianceFormat& format : formats()) {
    const VariancePayload codec(format, kTensors);
    std::vector<float> truth;
    std::vector<std::byte> good;
    codec.write(random_sent(format, 0.002, truth), good);
    std::vector<float> sum(kElements);
    int refused = 0;
    constexpr int kRounds = kSanitized ? 500 : 3000;
    for (int round = 0; round < kRounds; ++round) {
      auto bad = good;
      for (auto changes = 1 + random() % 3; changes > 0; --changes) {
        // Half of the changes hit the counts and exponents at the start.
        const auto range = random() % 2 == 0 ? std::min<std::size_t>(32, bad.size()) : bad.size();
        bad[random() % range] = static_cast<std::byte>(random());
      }
      if (random() % 4 == 0) bad.resize(random() % (bad.size() + 20));
      std::fill(sum.begin(), sum.end(), 0.0F);
      try {
        codec.add_up(one_rank(bad, 3), 1.0F, sum);
      } catch (const Error& error) {
        ++refused;
        ASSERT_EQ(error.code(), ErrorCode::bad_frame);
        ASSERT_NE(std::string(error.what()).find("rank 3"), std::string::npos) << error.what();
      }
      ASSERT_EQ(kernels::first_nonfinite(sum), sum.size());
    }
    EXPECT_GT(refused, kRounds / 3);
  }
}

TEST(VariancePayload, ASumThatOverflowedIsToldToAll) {
  for (const VarianceFormat& format : formats()) {
    const VariancePayload codec(format, kTensors);
    std::vector<float> truth;
    VarianceSent sent = random_sent(format, 0.01, truth);
    sent.parts[2].exponent = 255;
    std::vector<std::byte> payload;
    codec.write(sent, payload);
    std::vector<float> sum(kElements);
    try {
      codec.add_up(one_rank(payload, 6), 1, sum);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("rank 6"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("overflowed"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace thinreduce::variance_payload_test
