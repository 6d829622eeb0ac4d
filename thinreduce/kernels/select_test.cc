#include "thinreduce/kernels/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/test_data.h"
#include "thinreduce/error.h"

namespace thinreduce::kernels::select_test {
namespace {

using Floats = std::vector<float>;
using Indices = std::vector<std::uint32_t>;

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

}  // namespace
}  // namespace thinreduce::kernels::select_test
