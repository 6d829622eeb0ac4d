#include "thinreduce/wire/random.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

namespace thinreduce::random_test {
namespace {

constexpr std::uint32_t kDraws = 1 << 18;

std::vector<RandomKey> neighbouring_keys() {
  std::vector<RandomKey> keys;
  for (std::uint32_t near = 0; near < 3; ++near) {
    keys.push_back(random_key({.seed = near}));
    keys.push_back(random_key({.step = near + 1}));
    keys.push_back(random_key({.bucket = near + 1}));
    keys.push_back(random_key({.rank = near + 1}));
    keys.push_back(random_key({.purpose = near + 1}));
  }
  return keys;
}

double uniform(std::uint32_t bits) {
  return (static_cast<double>(bits) + 0.5) / 4294967296.0;
}

// The bits of docs/wire-format.md: every build must draw the same.
TEST(Random, GoldenDraws) {
  const RandomKey key = random_key({.seed = 1, .step = 2, .bucket = 3, .rank = 4, .purpose = 5});
  EXPECT_EQ(key.first, 0x2f63c7a9U);
  EXPECT_EQ(key.second, 0xa38c9ab6U);
  EXPECT_EQ(random_bits(key, 0), 0x5949a2afU);
  EXPECT_EQ(random_bits(key, 1), 0xec7841bfU);
  EXPECT_EQ(random_bits(key, 0xffffffff), 0x6547c3abU);
}

TEST(Random, EveryPartOfTheNameMatters) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
  for (const auto& key : neighbouring_keys()) seen.emplace(key.first, key.second);
  EXPECT_EQ(seen.size(), neighbouring_keys().size());
}

// Chi-squared over 256 cells of both 16-bit halves: the mean is 255 and the deviation 22.6; 60
// statistics must stay below six deviations.
TEST(Random, HalvesAreUniform) {
  for (const auto& key : neighbouring_keys()) {
    std::array<std::array<double, 256>, 4> counts{};
    for (std::uint32_t i = 0; i < kDraws; ++i) {
      const auto bits = random_bits(key, i);
      for (unsigned part = 0; part < 4; ++part) ++counts[part][bits >> (8 * part) & 255];
    }
    for (const auto& cells : counts) {
      double chi = 0;
      for (const double count : cells)
        chi += std::pow(count - kDraws / 256.0, 2) / (kDraws / 256.0);
      EXPECT_GT(chi, 255 - 6 * 22.6);
      EXPECT_LT(chi, 255 + 6 * 22.6);
    }
  }
}

// The correlation of independent uniform numbers has a deviation of 1/sqrt(draws).
double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - 0.5) * (b[i] - 0.5) * 12;
  return sum / std::sqrt(static_cast<double>(a.size()));
}

TEST(Random, DrawsAndHalvesAndStreamsAreIndependent) {
  const auto keys = neighbouring_keys();
  std::vector<std::vector<double>> streams;
  for (const auto& key : keys) {
    std::vector<double> all(kDraws), low(kDraws), high(kDraws), next(kDraws), far(kDraws);
    for (std::uint32_t i = 0; i < kDraws; ++i) {
      const auto bits = random_bits(key, i);
      all[i] = uniform(bits);
      low[i] = uniform(bits << 16);
      high[i] = uniform(bits & 0xffff0000);
      next[i] = uniform(random_bits(key, i + 1));
      far[i] = uniform(random_bits(key, i + (1 << 20)));
    }
    EXPECT_LT(std::abs(correlation(low, high)), 5);
    EXPECT_LT(std::abs(correlation(all, next)), 5);
    EXPECT_LT(std::abs(correlation(low, next)), 5);
    EXPECT_LT(std::abs(correlation(all, far)), 5);
    streams.push_back(std::move(all));
  }
  for (std::size_t a = 0; a < streams.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      EXPECT_LT(std::abs(correlation(streams[a], streams[b])), 5) << a << " and " << b;
    }
  }
}

// Every bit of the index flips each bit of the draw with probability one half.
TEST(Random, BitsAvalanche) {
  const RandomKey key = random_key({.seed = 9});
  for (unsigned in = 0; in < 32; ++in) {
    std::array<int, 32> flips{};
    constexpr int kRounds = 4096;
    for (std::uint32_t i = 0; i < kRounds; ++i) {
      const std::uint32_t index = i * 0x01000193U;
      const auto difference = random_bits(key, index) ^ random_bits(key, index ^ (1U << in));
      for (unsigned out = 0; out < 32; ++out) flips[out] += static_cast<int>(difference >> out & 1);
    }
    // Six deviations of sqrt(4096)/2.
    for (const int count : flips) EXPECT_NEAR(2 * count, kRounds, 12 * 32) << "input bit " << in;
  }
}

}  // namespace
}  // namespace thinreduce::random_test
