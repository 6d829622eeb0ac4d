#include "thinreduce/methods/fft/pair_selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/random_data.h"
#include "thinreduce/error.h"

namespace thinreduce::pair_selector_test {
namespace {

using kernels::for_pairs;
using kernels::pair_energy;
using kernels::pair_offset;
using kernels::PairPlaces;
using kernels::Thresholds;

std::vector<float> normal_spectrum(std::size_t words, unsigned seed) {
  return normal_floats(words * 128, seed);
}

// Selects by a full sort: among equal energies the lower index wins; zeros are never selected.
std::vector<std::uint64_t> sorted_top(const std::vector<float>& spectrum, std::size_t k,
                                      float scale) {
  std::vector<std::size_t> order(spectrum.size() / 2);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return pair_energy(spectrum, a, scale) > pair_energy(spectrum, b, scale);
  });
  std::vector<std::uint64_t> bitmap(spectrum.size() / 128);
  for (std::size_t i = 0; i < std::min(k, order.size()); ++i) {
    if (pair_energy(spectrum, order[i], scale) == 0) break;
    bitmap[order[i] / 64] |= std::uint64_t{1} << (order[i] % 64);
  }
  return bitmap;
}

// Selects in parts of `part` words, with thresholds guessed from `sample`.
struct Selection {
  std::vector<std::uint64_t> bitmap;
  std::vector<float> values;
  float scale = 1;
  int passes = 0;
};
Selection select(const std::vector<float>& spectrum, std::size_t k, std::span<const float> sample,
                 std::size_t part = 5) {
  Selection selection;
  PairSelector selector;
  const double fraction = 2 * static_cast<double>(k) / static_cast<double>(spectrum.size() + 1);
  const auto pass = [&](const Thresholds& thresholds) {
    ++selection.passes;
    selector.start(thresholds);
    for (std::size_t at = 0; at < spectrum.size(); at += part * 128) {
      selector.add(std::span(spectrum).subspan(at, std::min(part * 128, spectrum.size() - at)));
    }
  };
  pass(selector.guess(sample, fraction));
  if (!selector.can_find(k)) pass(selector.everything());
  PairPlaces places{{1, 2, 3}, {4, 5}};  // of another selection
  const auto result = selector.finish(k, places);
  EXPECT_EQ(places.firsts.size(), (spectrum.size() / 128 + part - 1) / part + 1);
  selection.bitmap.resize(spectrum.size() / 128);
  for (std::size_t run = 0; run + 1 < places.firsts.size(); ++run) {
    for (std::size_t i = places.firsts[run]; i < places.firsts[run + 1]; ++i) {
      const std::size_t pair = run * part * 64 + places.positions.at(i);
      selection.bitmap.at(pair / 64) |= std::uint64_t{1} << (pair % 64);
    }
  }
  selection.values.assign(result.values.begin(), result.values.end());
  selection.scale = result.scale;
  return selection;
}

Selection expect_top(const std::vector<float>& spectrum, std::size_t k,
                     std::span<const float> sample) {
  auto found = select(spectrum, k, sample);
  EXPECT_EQ(found.bitmap, sorted_top(spectrum, k, found.scale));
  std::vector<float> values;
  for_pairs(found.bitmap, [&](std::size_t pair) {
    values.push_back(spectrum[pair_offset(pair)]);
    values.push_back(spectrum[pair_offset(pair) + 16]);
  });
  EXPECT_EQ(found.values, values);
  return found;
}

TEST(PairSelector, EqualsAFullSort) {
  for (const std::size_t words : {0u, 1u, 2u, 8u, 33u, 500u}) {
    const auto spectrum = normal_spectrum(words, 1);
    const std::size_t pairs = words * 64;
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}, pairs / 7, pairs / 2, pairs}) {
      SCOPED_TRACE(testing::Message() << k << " of " << pairs);
      const auto third = std::span(spectrum).first(words / 3 * 128);
      EXPECT_EQ(expect_top(spectrum, k, {}).passes, 1);
      EXPECT_EQ(expect_top(spectrum, k, spectrum).passes, 1);
      (void)expect_top(spectrum, k, third);
    }
  }
}

TEST(PairSelector, TiesGoToTheLowerIndex) {
  for (const std::size_t words : {4u, 1100u}) {
    std::vector<float> spectrum(words * 128, 1.0f);
    for (std::size_t i = 0; i < spectrum.size(); i += 37) spectrum[i] = -2;
    for (const std::size_t k : {5u, 100u}) {
      (void)expect_top(spectrum, k, {});
      (void)expect_top(spectrum, k, spectrum);
    }
  }
}

TEST(PairSelector, ZerosAreNeverSelected) {
  std::vector<float> spectrum(100 * 128);
  EXPECT_TRUE(select(spectrum, 500, spectrum).values.empty());
  spectrum[7777] = -3.0f;
  EXPECT_EQ(select(spectrum, 500, spectrum).values.size(), 2u);
  EXPECT_EQ(expect_top(spectrum, 500, std::span(spectrum).first(1280)).values.size(), 2u);
}

// Samples that mislead, and values far from 1.
TEST(PairSelector, MisleadingSamplesAndScales) {
  for (const float factor : {1.0f, 1e-30f, 1e30f}) {
    auto spectrum = normal_spectrum(500, 4);
    for (auto& value : spectrum) value *= factor;
    const auto sample = std::span(spectrum).first(50 * 128);
    EXPECT_EQ(expect_top(spectrum, 4800, sample).passes, 1);
    for (auto& value : sample) value *= 50;
    EXPECT_EQ(expect_top(spectrum, 4800, sample).passes, 2);
    for (auto& value : sample) value *= 0.0001f;
    EXPECT_EQ(expect_top(spectrum, 4800, sample).passes, 2);
  }
}

TEST(PairSelector, StretchesAndZerosAreOneSpectrum) {
  auto spectrum = normal_spectrum(300, 6);
  std::fill_n(spectrum.begin() + 100 * 128, 40 * 128, 0.0f);
  const auto whole = std::span<const float>(spectrum);
  PairSelector selector;
  PairPlaces one, three;
  selector.start({});
  selector.add(whole.first(100 * 128));
  selector.add(whole.subspan(100 * 128, 40 * 128));
  selector.add(whole.subspan(140 * 128));
  const auto expected = selector.finish(1000, one);
  const std::vector<float> values(expected.values.begin(), expected.values.end());
  selector.start({}, 3);
  selector.add(whole.subspan(140 * 128), 2);
  selector.add_zeros(40, 1);
  selector.add(whole.first(100 * 128), 0);
  const auto found = selector.finish(1000, three);
  EXPECT_TRUE(std::ranges::equal(found.values, values));
  EXPECT_EQ(found.energy, expected.energy);
  EXPECT_EQ(three.firsts, one.firsts);
  EXPECT_EQ(three.positions, one.positions);
}

TEST(PairSelector, AHalfWordIsABug) {
  const std::vector<float> spectrum(128);
  PairSelector selector;
  selector.start({});
  EXPECT_THROW(selector.add(std::span(spectrum).first(127)), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::pair_selector_test
