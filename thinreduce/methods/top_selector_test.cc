#include "thinreduce/methods/top_selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "tests/test_data.h"
#include "thinreduce/collective/chunks.h"

namespace thinreduce::top_selector_test {
namespace {

using Floats = std::vector<float>;
using Indices = std::vector<std::uint32_t>;
using kernels::kSizes;
using kernels::mixed_floats;
using kernels::on_every_target;

// Returns all indices, those of the largest magnitudes first.
Indices order_of(const Floats& values) {
  Indices order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return std::abs(values[a]) > std::abs(values[b]); });
  return order;
}

// Returns the expected selection, given order_of(values).
Indices sorted_selection(const Floats& values, Indices order, std::size_t k) {
  order.resize(std::min(k, order.size()));
  std::erase_if(order, [&](auto i) { return values[i] == 0; });
  std::sort(order.begin(), order.end());
  return order;
}

void expect_exact(const Floats& values, const Indices& order, std::size_t k) {
  const auto expected = sorted_selection(values, order, k);
  const auto check = [&](const Selected& selected) {
    ASSERT_EQ(Indices(selected.indices.begin(), selected.indices.end()), expected);
    Floats selected_values(expected.size());
    std::ranges::transform(expected, selected_values.begin(), [&](auto i) { return values[i]; });
    ASSERT_EQ(Floats(selected.values.begin(), selected.values.end()), selected_values);
  };
  SCOPED_TRACE(testing::Message() << "k " << k << " of " << values.size());
  TopSelector selector;
  check(selector.select(values, k));
  // The sum of halves is exact, so the fused form must select the same. The same selector shows
  // that the first call left no state. A denormal may have no exact half.
  Floats halves = values, rest = values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    halves[i] = values[i] / 2;
    rest[i] = values[i] - halves[i];
  }
  Floats stale = halves, others = rest;
  check(selector.add_select(halves, rest, k));
  EXPECT_EQ(halves, values);
  // The same where the selected elements hold values that no longer count.
  const Selected before = selector.select(values, k);
  for (const auto i : before.indices) {
    stale[i] = 1e30f;
    others[i] = values[i];
  }
  check(selector.add_select(stale, others, k, {}, before.indices));
  EXPECT_EQ(stale, values);
  Floats run_values;
  check(selector.select({.elements = values.size(),
                         .value_at = [&](std::size_t i) { return values[i]; },
                         .values_of =
                             [&](Range run, std::size_t, bool) {
                               const auto made = part(std::span(values), run);
                               run_values.assign(made.begin(), made.end());
                               return std::span<const float>(run_values);
                             }},
                        k));
}

TEST(TopSelector, EqualsSortingAtEverySize) {
  for (const std::size_t size : kSizes) {
    const auto values = mixed_floats(size, 8);
    const auto order = order_of(values);
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}, size / 100, size / 3, size - 1,
                                size, size + 1, 2 * size + 5}) {
      expect_exact(values, order, size == 0 ? std::min<std::size_t>(k, 9) : k);
    }
  }
}

TEST(TopSelector, OnEveryTarget) {
  const auto values = mixed_floats(300007, 9);
  const auto order = order_of(values);
  on_every_target([&] {
    for (const std::size_t k : {1, 300, 3000, 150000}) expect_exact(values, order, k);
  });
}

// More elements than room for candidates, so that the guess and the cuts are used.
TEST(TopSelector, HardInputs) {
  constexpr std::size_t kSize = 400009;
  std::vector<std::pair<const char*, Floats>> inputs;
  inputs.emplace_back("all equal", Floats(kSize, -1.5f));
  inputs.emplace_back("all zero", Floats(kSize, 0.0f));
  Floats made(kSize);
  std::mt19937 random(10);
  for (std::size_t i = 0; i < kSize; ++i) made[i] = static_cast<float>(i);
  inputs.emplace_back("ascending", made);
  std::reverse(made.begin(), made.end());
  inputs.emplace_back("descending", made);
  for (auto& value : made) value = static_cast<float>(random() % 3) - 1;
  inputs.emplace_back("three values", made);
  for (auto& value : made)
    value = std::bit_cast<float>(static_cast<std::uint32_t>(random() % 5000));
  inputs.emplace_back("denormals", made);
  for (auto& value : made) value = random() % 2000 == 0 ? 1.0f : 0.0f;
  inputs.emplace_back("few are not zero", made);
  for (std::size_t i = 0; i < kSize; ++i)
    made[i] = i < kSize - 5000 ? 1e-3f : 1.0f + static_cast<float>(i % 7);
  inputs.emplace_back("all of it at the end", made);
  for (std::size_t i = 0; i < kSize; ++i)
    made[i] = i % 16 == 0 ? 1.0f + static_cast<float>(i % 5) : 0.1f;
  inputs.emplace_back("periodic", made);
  for (const auto& [name, values] : inputs) {
    SCOPED_TRACE(name);
    const auto order = order_of(values);
    for (const std::size_t k : {0, 1, 17, 400, 4000, 40000, 200000, 400008, 400009, 400010}) {
      expect_exact(values, order, k);
    }
  }
}

// The largest values are exactly where the sample looks, so that the guess is far too high.
TEST(TopSelector, GuessThatIsTooHigh) {
  constexpr std::size_t kSize = 16384 * 25;
  Floats values(kSize, 0.25f);
  std::uint32_t random = 1;
  for (std::size_t i = 0; i < 16384; ++i) {
    random = random * 1664525 + 1013904223;
    values[i * 25 + (random >> 8) % 25] = 8.0f + static_cast<float>(i % 1000);
  }
  const auto order = order_of(values);
  for (const std::size_t k : {1000, 4000, 16384, 16385, 100000}) expect_exact(values, order, k);
}

}  // namespace
}  // namespace thinreduce::top_selector_test
