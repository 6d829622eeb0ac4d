#include "thinreduce/methods/sketch/sketch_rows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/test_data.h"
#include "thinreduce/error.h"

namespace thinreduce::kernels::sketch_rows_test {
namespace {

std::vector<SketchRow> random_rows(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<SketchRow> rows(count);
  for (auto& row : rows) {
    for (auto& coefficient : row.coefficients) coefficient = random() % kSketchPrime;
  }
  return rows;
}

// Excludes values whose sums overflow: the result would then depend on the order.
std::vector<float> tame_floats(std::size_t size, unsigned seed) {
  auto values = mixed_floats(size, seed);
  for (auto& value : values) value = std::abs(value) > 100 ? 100.0f : value;
  return values;
}

TEST(SketchRows, WordIsThePolynomialModuloThePrime) {
  __extension__ using Wide = unsigned __int128;
  std::mt19937_64 random(1);
  for (const auto& row : random_rows(200, 2)) {
    for (const std::uint64_t block :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0xffffffff}, random() >> 32}) {
      Wide expected = 0;
      Wide power = 1;
      for (const auto coefficient : row.coefficients) {
        expected = (expected + coefficient * power) % kSketchPrime;
        power = power * block % kSketchPrime;
      }
      ASSERT_EQ(sketch_word(row, block), static_cast<std::uint64_t>(expected));
    }
  }
  const SketchRow largest{{kSketchPrime - 1, kSketchPrime - 1, kSketchPrime - 1, kSketchPrime - 1}};
  EXPECT_LT(sketch_word(largest, 0xffffffff), kSketchPrime);
}

TEST(SketchRows, PlacesAreInsideAndDifferWithinABlock) {
  for (const std::size_t columns : {16u, 48u, 4096u}) {
    for (const auto& row : random_rows(20, 3)) {
      for (std::uint64_t block = 0; block < 50; ++block) {
        std::vector<bool> taken(columns);
        for (std::uint64_t i = 0; i < kSketchBlock; ++i) {
          const auto place = sketch_place(row, columns, block * kSketchBlock + i);
          ASSERT_LT(place.column, columns);
          ASSERT_FALSE(taken[place.column]);
          taken[place.column] = true;
        }
      }
    }
  }
}

TEST(SketchRows, EqualTheReferenceOnEveryTarget) {
  constexpr std::size_t kColumns = 272;
  on_every_target([] {
    at_every_size([](std::size_t size, std::size_t offset) {
      for (const std::size_t count : {1u, 3u, 5u, 7u}) {
        if (size > 2000 && (count != 5 || offset != 1)) continue;  // the reference is slow
        const auto rows = random_rows(count, 4);
        const SketchRows sketch{rows, kColumns};
        const auto values = tame_floats(size, 5);
        auto expected = tame_floats(count * kColumns, 6);
        Guarded<float> in(std::span<const float>(values), offset);
        Guarded<float> cells(std::span<const float>(expected), 2 * offset);
        sketch_accumulate(in.span(), 77, sketch, cells.span());
        reference::sketch_accumulate(values, 77, sketch, expected);
        EXPECT_TRUE(same_bits<float>(cells.span(), expected));
        EXPECT_TRUE(cells.intact());
        EXPECT_TRUE(in.intact());

        // Columns may be added to one after another, or by several threads.
        const auto before = tame_floats(count * kColumns, 6);
        Guarded<float> by_columns(std::span<const float>(before), offset);
        for (const SketchColumns columns : {SketchColumns{48, 272}, {0, 16}, {16, 48}}) {
          sketch_accumulate_columns(in.span(), 77, sketch, columns, by_columns.span());
        }
        EXPECT_TRUE(same_bits<float>(by_columns.span(), expected));
        EXPECT_TRUE(by_columns.intact());

        std::vector<float> wanted(size);
        sketch_estimate(cells.span(), sketch, 77, in.span());
        reference::sketch_estimate(expected, sketch, 77, wanted);
        EXPECT_TRUE(same_bits<float>(in.span(), wanted));
        EXPECT_TRUE(in.intact());
      }
    });
  });
}

// Zeros of both signs in all rows: the one case in which Min and Max depend on the target.
TEST(SketchRows, EstimateOfZeroIsPositive) {
  on_every_target([] {
    const auto rows = random_rows(5, 7);
    const SketchRows sketch{rows, 64};
    std::vector<float> cells(5 * 64);
    for (std::size_t i = 0; i < cells.size(); i += 3) cells[i] = -0.0f;
    std::vector<float> estimates(1000, 1.0f);
    sketch_estimate(cells, sketch, 0, estimates);
    for (const float value : estimates) ASSERT_EQ(std::bit_cast<std::uint32_t>(value), 0u);
  });
}

TEST(SketchRows, ShapesThatCannotBeAreABug) {
  const auto rows = random_rows(2, 8);
  std::vector<float> cells(64), values(5);
  EXPECT_THROW(sketch_estimate(cells, {rows, 32}, 0, values), BrokenInvariant);
  EXPECT_THROW(sketch_accumulate_columns(values, 0, {rows, 32}, {8, 32}, cells), BrokenInvariant);
  EXPECT_THROW(sketch_accumulate_columns(values, 0, {rows, 32}, {0, 48}, cells), BrokenInvariant);
  const auto one = std::span(rows).first(1);
  EXPECT_THROW(sketch_accumulate(values, 0, {one, 60}, std::span(cells).first(60)),
               BrokenInvariant);
  EXPECT_THROW(sketch_estimate(cells, {one, 32}, 0, values), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::kernels::sketch_rows_test
