#include "thinreduce/kernels/unit_selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/test_data.h"
#include "thinreduce/error.h"

namespace thinreduce::kernels {
namespace {

std::vector<float> normal_spectrum(std::size_t words, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> spectrum(words * 128);
  for (auto& value : spectrum) value = normal(random);
  return spectrum;
}

// By a full sort: of equal energies the lower index goes first, zeros never.
std::vector<std::uint64_t> sorted_top(const std::vector<float>& spectrum, std::size_t k,
                                      float scale) {
  std::vector<std::size_t> order(spectrum.size() / 2);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return unit_energy(spectrum, a, scale) > unit_energy(spectrum, b, scale);
  });
  std::vector<std::uint64_t> bitmap(spectrum.size() / 128);
  for (std::size_t i = 0; i < std::min(k, order.size()); ++i) {
    if (unit_energy(spectrum, order[i], scale) == 0) break;
    bitmap[order[i] / 64] |= std::uint64_t{1} << (order[i] % 64);
  }
  return bitmap;
}

void expect_top(const std::vector<float>& spectrum, std::size_t k) {
  UnitSelector selector;
  std::vector<std::uint64_t> bitmap(spectrum.size() / 128, 7);
  const auto result = selector.select(spectrum, k, bitmap);
  EXPECT_EQ(bitmap, sorted_top(spectrum, k, result.scale));
  EXPECT_EQ(count_units(bitmap), result.units);
}

TEST(UnitSelector, EqualsAFullSort) {
  // The last two are long enough for a guess.
  for (const std::size_t words : {0u, 1u, 2u, 8u, 33u, 1100u, 3000u}) {
    const auto spectrum = normal_spectrum(words, 1);
    const std::size_t units = words * 64;
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}, units / 7, units / 2, units}) {
      SCOPED_TRACE(testing::Message() << k << " of " << units);
      expect_top(spectrum, k);
    }
  }
}

TEST(UnitSelector, TiesGoToTheLowerIndex) {
  for (const std::size_t words : {4u, 1100u}) {
    std::vector<float> spectrum(words * 128, 1.0f);
    for (std::size_t i = 0; i < spectrum.size(); i += 37) spectrum[i] = -2;
    for (const std::size_t k : {5u, 100u}) expect_top(spectrum, k);
  }
}

TEST(UnitSelector, ZerosAreNeverSelected) {
  std::vector<float> spectrum(1100 * 128);
  std::vector<std::uint64_t> bitmap(1100, 1);
  EXPECT_EQ(UnitSelector().select(spectrum, 500, bitmap).units, 0u);
  EXPECT_EQ(count_units(bitmap), 0u);
  spectrum[77777] = -3.0f;
  EXPECT_EQ(UnitSelector().select(spectrum, 500, bitmap).units, 1u);
}

// All large units in one place, where the sample hardly sees them; and values far from 1.
TEST(UnitSelector, MisleadingSamplesAndScales) {
  for (const float factor : {1.0f, 1e-30f, 1e30f}) {
    auto spectrum = normal_spectrum(2048, 4);
    for (auto& value : spectrum) value *= factor;
    expect_top(spectrum, 9000);
    for (std::size_t i = 0; i < 20000; ++i) spectrum[i] *= 50;
    expect_top(spectrum, 9000);
    std::sort(spectrum.begin(), spectrum.end());
    expect_top(spectrum, 9000);
  }
}

TEST(Units, MarkEqualsTheReferenceOnEveryTarget) {
  for (const std::size_t words : {0u, 1u, 5u, 32u}) {
    auto spectrum = mixed_floats(words * 128, 5);
    const Thresholds thresholds{0.5f, std::bit_cast<std::uint32_t>(0.1f),
                                std::bit_cast<std::uint32_t>(0.7f)};
    std::vector<std::uint64_t> low(words), high(words), found_low(words), found_high(words);
    const double energy = reference::mark(spectrum, thresholds, low, high);
    on_every_target([&] {
      for (const std::size_t offset : kOffsets) {
        Guarded<float> in(std::span<const float>(spectrum), offset);
        const double found = mark(in.span(), thresholds, found_low, found_high);
        EXPECT_TRUE(found == energy || (std::isinf(found) && std::isinf(energy)));
        EXPECT_EQ(found_low, low);
        EXPECT_EQ(found_high, high);
      }
    });
  }
}

TEST(Units, LengthsThatDifferAreABug) {
  std::vector<std::uint64_t> one(1), two(2);
  std::vector<float> spectrum(128);
  EXPECT_THROW(mark(spectrum, {}, one, two), BrokenInvariant);
  EXPECT_THROW((void)UnitSelector().select(spectrum, 1, two), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::kernels
