#include "thinreduce/methods/sketch/quantum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/ranks.h"
#include "thinreduce/collective/float_sum.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"

namespace thinreduce::quantum_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::int16_t rounded(const SharedQuantum& quantum, float value) {
  std::int16_t multiple = 0;
  quantum.round(std::span(&value, 1), std::span(&multiple, 1));
  return multiple;
}

TEST(SharedQuantum, IsTheSmallestPowerOfTwoThatFits) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponents(-148, 126);
  for (const int world : {1, 2, 3, 4, 7, 64, 511}) {
    for (int round = 0; round < 300; ++round) {
      auto largest = static_cast<float>(std::exp2(exponents(random)));
      const int limit = 32767 / world;
      // Values at which one multiple more or less matters.
      if (round % 3 == 0)
        largest = static_cast<float>(limit) * std::exp2(std::floor(std::log2(largest)));
      if (round % 6 == 0) largest = std::nextafter(largest, kInfinity);
      if (!std::isfinite(largest)) continue;
      const SharedQuantum quantum(largest, world);
      ASSERT_EQ(quantum.limit(), limit);
      int exponent = 0;
      ASSERT_EQ(std::frexp(quantum.quantum(), &exponent), 0.5f);
      ASSERT_LE(static_cast<double>(largest), limit * static_cast<double>(quantum.quantum()));
      if (quantum.quantum() > std::numeric_limits<float>::denorm_min()) {
        ASSERT_GT(static_cast<double>(largest), limit * static_cast<double>(quantum.quantum()) / 2);
      }
      ASSERT_LE(rounded(quantum, largest), limit);
      ASSERT_EQ(rounded(quantum, -largest), -rounded(quantum, largest));
    }
    EXPECT_EQ(rounded(SharedQuantum(0, world), 0), 0);
  }
  EXPECT_GE(32767 / SharedQuantum::kMaxRanks, 64);
}

// Multiple and remainder add up to the value exactly.
TEST(SharedQuantum, LeavesTheExactRest) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const float scale : {1e-44f, 1e-37f, 1.0f, 1e36f}) {
    for (int round = 0; round < 2000; ++round) {
      const float largest = std::abs(normal(random)) * scale;
      const SharedQuantum quantum(largest, 4);
      const float value = largest * std::tanh(normal(random));
      const auto multiple = rounded(quantum, value);
      float part = 0;
      quantum.restore(std::span(&multiple, 1), std::span(&part, 1));
      const float rest = value - part;
      ASSERT_EQ(static_cast<double>(part), multiple * static_cast<double>(quantum.quantum()));
      ASSERT_EQ(static_cast<double>(rest) + static_cast<double>(part), static_cast<double>(value));
      ASSERT_LE(std::abs(static_cast<double>(rest)), static_cast<double>(quantum.quantum()) / 2);
    }
  }
}

// Rank 1 claims an arbitrary maximum; rank 0 has 1.5.
TEST(SharedQuantum, RefusesImpossibleMaxima) {
  const auto answer = [](float claimed) {
    return try_ranks(2, [&](std::unique_ptr<Transport> transport) {
      Exchange exchange(*transport, Seconds(20), {});
      if (exchange.rank() == 1) {
        float largest = claimed;
        DirectExchange(exchange, std::span(&largest, 1)).finish(exchange, kernels::maximum);
        return;
      }
      const std::vector<float> values{0.5f, -1.5f};
      const auto agreed = QuantumAgreement(exchange, largest_finite(values)).conclude(exchange);
      EXPECT_EQ(agreed.quantum(), SharedQuantum(std::max(1.5f, claimed), 2).quantum());
    })[0];
  };
  for (const float claimed : {0.0f, -3.0f, 1.5f, 3e38f, -kInfinity}) {
    EXPECT_EQ(answer(claimed), nullptr) << claimed;  // a maximum below the own value has no effect
  }
  EXPECT_THAT(error_text(answer(kInfinity), ErrorCode::bad_frame), testing::HasSubstr("inf"));
  EXPECT_THAT(error_text(answer(std::numeric_limits<float>::max()), ErrorCode::bad_frame),
              testing::HasSubstr("exceeds float32 when it is rounded"));
  if (const auto thrown = answer(kNan)) (void)error_text(thrown, ErrorCode::bad_frame);
}

// All ranks refuse a value of one rank that is not finite.
TEST(SharedQuantum, RefusesValuesThatAreNotFinite) {
  for (const float value : {kInfinity, -kInfinity, kNan}) {
    for (const int world : {1, 3}) {
      const auto thrown = try_ranks(world, [&](std::unique_ptr<Transport> transport) {
        Exchange exchange(*transport, Seconds(20), {});
        const std::vector<float> values{1, exchange.rank() == world - 1 ? value : 2};
        (void)QuantumAgreement(exchange, largest_finite(values)).conclude(exchange);
      });
      for (const auto& one : thrown) (void)error_text(one, ErrorCode::bad_frame);
    }
  }
}

// Rank 1 sends arbitrary words: the first hop is one rank's multiples, the second the sum. Accepted
// sums are always within range.
TEST(SharedQuantum, RefusesSumsThatCannotBe) {
  constexpr std::size_t kValues = 9;
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::vector<std::int16_t> words(kValues);
    for (auto& word : words) {
      word = static_cast<std::int16_t>(random() % 24 == 0 ? random() : random() % 16384);
    }
    const auto thrown = try_ranks(2, [&](std::unique_ptr<Transport> transport) {
      Exchange exchange(*transport, Seconds(20), {});
      const SharedQuantum quantum(1, exchange.rank() == 0 ? 2 : 1);
      std::vector<std::int16_t> own(kValues, 16383);
      std::vector<std::int16_t> room(kValues);
      std::vector<float> sums(kValues);
      if (exchange.rank() == 1) own = words;
      try {
        sum_multiples(exchange, quantum, {own, room, sums});
      } catch (const Error& error) {
        exchange.transport().abandon(error.what());
        throw;
      }
      if (exchange.rank() == 1) return;
      for (const float sum : sums) ASSERT_LE(std::abs(sum), 32766 * quantum.quantum());
    });
    if (!thrown[0]) continue;
    EXPECT_THAT(error_text(thrown[0], ErrorCode::bad_frame), testing::HasSubstr("rank 1 sent"));
    ++refused;
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 900);
}

}  // namespace
}  // namespace thinreduce::quantum_test
