#include "thinreduce/kernels/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/test_data.h"
#include "thinreduce/error.h"
#include "thinreduce/methods/top_selector.h"

namespace thinreduce::kernels::select_test {
namespace {

using Floats = std::vector<float>;
using Indices = std::vector<std::uint32_t>;

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

TEST(Collect, EqualsTheReferenceOnEveryTarget) {
  on_every_target([] {
    at_every_size([](std::size_t size, std::size_t offset) {
      const auto values = mixed_floats(size, 1);
      const auto addend = mixed_floats(size, 2);
      for (const float min : {0x1p-149f, 1.0f, 2.0f, 1e30f}) {
        Guarded<float> run(std::span<const float>(values), offset);
        Guarded<std::uint32_t> indices(size, offset);
        Guarded<float> found(size, offset);
        Indices expected_indices(size);
        Floats expected_found(size), expected_run = values;
        const auto expect_same = [&](std::size_t count, std::size_t expected) {
          ASSERT_EQ(count, expected);
          EXPECT_TRUE(same_bits<std::uint32_t>(indices.span().first(count),
                                               std::span(expected_indices).first(count)));
          EXPECT_TRUE(
              same_bits<float>(found.span().first(count), std::span(expected_found).first(count)));
          EXPECT_TRUE(same_bits<float>(run.span(), expected_run));
          EXPECT_TRUE(indices.intact() && found.intact() && run.intact());
        };
        expect_same(
            collect(run.span(), 77, magnitude(min), {indices.span(), found.span()}),
            reference::collect(values, 77, magnitude(min), {expected_indices, expected_found}));
        expect_same(
            add_collect(run.span(), addend, 77, magnitude(min), {indices.span(), found.span()}),
            reference::add_collect(expected_run, addend, 77, magnitude(min),
                                   {expected_indices, expected_found}));
      }
    });
  });
}

TEST(Collect, KnownValues) {
  const Floats run = {0, -3, 2.5f, -2.5f, 2.4f, 9};
  Indices indices(6);
  Floats values(6);
  ASSERT_EQ(collect(run, 100, magnitude(2.5f), {indices, values}), 4u);
  indices.resize(4);
  values.resize(4);
  EXPECT_EQ(indices, (Indices{101, 102, 103, 105}));
  EXPECT_EQ(values, (Floats{-3, 2.5f, -2.5f, 9}));
}

TEST(CountDigits, EqualsTheReferenceOnEveryTarget) {
  const Floats values = mixed_floats(5003, 3);
  for (const auto& [shift, bits] : {std::pair{20U, 11U}, {10U, 10U}, {0U, 10U}, {3U, 1U}}) {
    for (const std::size_t decided_by : {0u, 17u, 4000u}) {
      const std::uint32_t decided = magnitude(values[decided_by]) >> (shift + bits);
      DigitCounts expected{}, found{};
      expected[0] = 7;
      reference::count_digits(values, {shift, bits, decided}, expected);
      on_every_target([&] {
        found = {};
        found[0] = 7;
        count_digits(values, {shift, bits, decided}, found);
        EXPECT_EQ(found, expected) << shift;
      });
    }
  }
}

// Into room that is exactly as large as needed, and in place; with ties that stay and that go.
TEST(KeepLargest, EqualsTheReferenceOnEveryTarget) {
  for (const std::size_t size : {1u, 8u, 33u, 1009u}) {
    Floats values = mixed_floats(size, 5);
    for (std::size_t i = 0; i < size; i += 3) values[i] = i % 2 == 0 ? 1.5f : -1.5f;
    Indices indices(size);
    std::iota(indices.begin(), indices.end(), 100u);
    const std::size_t ties = (size + 2) / 3;
    for (const std::size_t kept_ties : {std::size_t{0}, std::size_t{1}, ties / 2, ties}) {
      const KthLargest last{magnitude(1.5f), kept_ties};
      Indices expected_indices(size);
      Floats expected(size);
      const std::size_t count =
          reference::keep_largest(last, {indices, values}, {expected_indices, expected});
      on_every_target([&] {
        Guarded<std::uint32_t> found_indices(count, 1);
        Guarded<float> found(count, 1);
        Indices same_indices = indices;
        Floats same = values;
        ASSERT_EQ(keep_largest(last, {indices, values}, {found_indices.span(), found.span()}),
                  count);
        ASSERT_EQ(keep_largest(last, {same_indices, same}, {same_indices, same}), count);
        EXPECT_TRUE(std::ranges::equal(found.span(), std::span(expected).first(count)));
        EXPECT_TRUE(std::ranges::equal(std::span(same).first(count), found.span()));
        EXPECT_TRUE(
            std::ranges::equal(found_indices.span(), std::span(expected_indices).first(count)));
        EXPECT_TRUE(std::ranges::equal(std::span(same_indices).first(count), found_indices.span()));
        EXPECT_TRUE(found.intact() && found_indices.intact());
      });
    }
  }
}

TEST(KthLargest, EqualsSorting) {
  for (const std::size_t size : {1, 2, 3, 100, 1009}) {
    const auto values = mixed_floats(size, 4);
    auto sorted = values;
    std::sort(sorted.begin(), sorted.end(),
              [](float a, float b) { return std::abs(a) > std::abs(b); });
    for (std::size_t k = 1; k <= size; ++k) {
      const auto kth = kth_largest(values, k);
      ASSERT_EQ(kth.magnitude, magnitude(sorted[k - 1]));
      const auto ties =
          std::count_if(sorted.begin(), sorted.begin() + static_cast<long>(k),
                        [&](float value) { return magnitude(value) == kth.magnitude; });
      ASSERT_EQ(kth.ties, static_cast<std::size_t>(ties));
    }
    EXPECT_THROW((void)kth_largest(values, 0), BrokenInvariant);
    EXPECT_THROW((void)kth_largest(values, size + 1), BrokenInvariant);
  }
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
}  // namespace thinreduce::kernels::select_test
