#include "thinreduce/methods/sketch/count_sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "tests/random_data.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce::count_sketch_test {
namespace {

std::vector<float> whole_vector(std::size_t size, unsigned seed) {
  auto values = normal_floats(size, seed);
  for (auto& value : values) value = std::trunc(value * 50);
  return values;
}

CountSketch sketch_of(const std::vector<float>& values, const CountSketchOptions& options) {
  CountSketch sketch(options);
  sketch.accumulate(values);
  return sketch;
}

// Finds the cell of an element and its sign through the public interface.
struct Place {
  std::size_t column;
  int sign;
};
Place place(CountSketch& one_row, std::uint64_t element) {
  std::ranges::fill(one_row.cells(), 0.0f);
  one_row.add(element, 1);
  const auto cells = one_row.cells();
  const auto found = std::ranges::find_if(cells, [](float cell) { return cell != 0; });
  return {static_cast<std::size_t>(found - cells.begin()), *found > 0 ? 1 : -1};
}

// S(a) + S(b) = S(a + b), bit by bit, on whole numbers.
TEST(CountSketch, IsLinear) {
  for (const std::size_t size : {0u, 1u, 15u, 16u, 1009u, 70001u}) {
    const CountSketchOptions options{.rows = 5, .columns = 320, .seed = 7};
    const auto a = whole_vector(size, 1);
    const auto b = whole_vector(size, 2);
    std::vector<float> both(size);
    for (std::size_t i = 0; i < size; ++i) both[i] = a[i] + b[i];
    auto merged = sketch_of(a, options);
    merged.merge(sketch_of(b, options));
    EXPECT_TRUE(std::ranges::equal(merged.cells(), sketch_of(both, options).cells()));
  }
}

TEST(CountSketch, AllWaysInAndOutAgree) {
  const auto values = whole_vector(1009, 3);
  const CountSketchOptions options{.rows = 5, .columns = 128, .seed = 9};
  const auto whole = sketch_of(values, options);
  CountSketch pieces(options);
  pieces.accumulate(std::span(values).first(160));
  pieces.accumulate(std::span(values).subspan(160), 160);
  CountSketch singles(options);
  for (std::size_t i = 0; i < values.size(); ++i) singles.add(i, values[i]);
  EXPECT_TRUE(std::ranges::equal(pieces.cells(), whole.cells()));
  EXPECT_TRUE(std::ranges::equal(singles.cells(), whole.cells()));

  std::vector<float> estimates(values.size());
  whole.estimate(0, estimates);
  std::vector<float> later(values.size() - 160);
  whole.estimate(160, later);
  EXPECT_TRUE(std::ranges::equal(later, std::span(estimates).subspan(160)));
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(whole.estimate(i), estimates[i]);
}

// One row: unbiased, and with the variance that the hashing promises. For elements of other blocks
// that is their energy / columns; those of the same block never collide, so that the whole is at
// most (|g|^2 - g_i^2) / columns. The last three vectors are made to hurt block hashing: all energy
// in one lane, in one block, and in blocks whose numbers are powers of two.
TEST(CountSketch, OneRowIsUnbiasedWithTheVarianceItPromises) {
  constexpr std::size_t kSize = 640;
  constexpr std::size_t kColumns = 64;
  constexpr int kSeeds = 6000;
  std::vector<std::vector<float>> vectors(5, std::vector<float>(kSize));
  vectors[0] = normal_floats(kSize, 4);
  std::ranges::fill(vectors[1], 1.0f);
  for (std::size_t i = 3; i < kSize; i += 16) vectors[2][i] = 1;
  for (std::size_t i = 32; i < 48; ++i) vectors[3][i] = 1;
  for (std::size_t block = 1; block < 40; block *= 2) vectors[4][block * 16 + 3] = 1;
  for (std::size_t which = 0; which < vectors.size(); ++which) {
    const auto& g = vectors[which];
    for (const std::size_t i : {35u, 36u}) {
      SCOPED_TRACE(testing::Message() << "vector " << which << ", element " << i);
      double energy = 0;
      double elsewhere = 0;
      for (std::size_t other = 0; other < kSize; ++other) {
        energy += static_cast<double>(g[other]) * g[other];
        if (other / 16 != i / 16) elsewhere += static_cast<double>(g[other]) * g[other];
      }
      const double bound = (energy - static_cast<double>(g[i]) * g[i]) / kColumns;
      const double variance = elsewhere / kColumns;
      double sum = 0;
      double squares = 0;
      double fourths = 0;
      CountSketch sketch({.rows = 1, .columns = kColumns});
      for (int seed = 0; seed < kSeeds; ++seed) {
        sketch.reset(static_cast<std::uint64_t>(seed));
        sketch.accumulate(g);
        const double error = static_cast<double>(sketch.estimate(i)) - g[i];
        sum += error;
        squares += error * error;
        fourths += error * error * error * error;
      }
      const double mean = sum / kSeeds;
      const double measured = squares / kSeeds;
      // Five standard errors, that of the variance from the measured fourth moment.
      const double spread = std::sqrt(fourths / kSeeds / kSeeds);
      EXPECT_NEAR(mean, 0, 5 * std::sqrt(variance / kSeeds) + 1e-6);
      EXPECT_NEAR(measured, variance, 5 * spread + 1e-9);
      EXPECT_LE(measured, bound + 5 * spread + 1e-9);
    }
  }
}

TEST(CountSketch, ManyColumnsAreExact) {
  for (const std::size_t size : {1u, 17u, 200u}) {
    const auto values = normal_floats(size, 5);
    const auto sketch = sketch_of(values, {.columns = 1 << 18, .seed = 1});
    std::vector<float> estimates(size);
    sketch.estimate(0, estimates);
    EXPECT_EQ(estimates, values);
    double energy = 0;
    for (const float value : values) energy += static_cast<double>(value) * value;
    EXPECT_NEAR(sketch.norm(), std::sqrt(energy), 1e-9 * std::sqrt(energy));
  }
}

// By Chebyshev a row is off by more than t = 3 |g| / sqrt(columns) with probability at most 1/9,
// and the median of five is only if three rows are: at most 0.0115 + 0.0007 + 0.0001 < 1.25 %.
// So of elements of at least 2t, at most 1.25 % are expected to be missed at a threshold of t, and
// of all others below t at most 1.25 % to be reported, whatever the vector.
TEST(CountSketch, HeavyHittersAtTheTheoreticalThreshold) {
  constexpr std::size_t kSize = 100003;
  constexpr std::size_t kColumns = 4096;
  constexpr std::size_t kHeavy = 40;
  double missed = 0;
  double wrong = 0;
  constexpr int kSeeds = 10;
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    auto values = normal_floats(kSize, seed);
    double energy = 0;
    for (const float value : values) energy += static_cast<double>(value) * value;
    // |g|^2 = tail + heavy * (2t)^2 with t^2 = 9 |g|^2 / columns.
    const double heavy_fraction = kHeavy * 36.0 / kColumns;
    const double t = 3 * std::sqrt(energy / (1 - heavy_fraction) / kColumns);
    for (std::size_t h = 0; h < kHeavy; ++h) {
      values[h * 2411] = static_cast<float>(h % 2 == 0 ? 2 * t : -2 * t);
    }
    const auto sketch = sketch_of(values, {.columns = kColumns, .seed = seed});
    const auto found = sketch.heavy_hitters(kSize, static_cast<float>(t));
    std::size_t heavy = 0;
    for (const auto& [index, estimate] : found) {
      const bool planted = index % 2411 == 0 && index / 2411 < kHeavy;
      heavy += planted ? 1 : 0;
      ASSERT_EQ(estimate, sketch.estimate(index));
      EXPECT_TRUE(!planted || (estimate > 0) == (values[index] > 0));
    }
    missed += static_cast<double>(kHeavy - heavy) / kHeavy / kSeeds;
    wrong += static_cast<double>(found.size() - heavy) / kSize / kSeeds;
  }
  EXPECT_LE(missed, 0.0125);
  EXPECT_LE(wrong, 0.0125);
}

// The energy of a row has a relative standard deviation of at most sqrt(2 / columns).
TEST(CountSketch, Norm) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto values = normal_floats(5000, seed);
    double energy = 0;
    for (const float value : values) energy += static_cast<double>(value) * value;
    const double norm = sketch_of(values, {.columns = 1024, .seed = seed}).norm();
    EXPECT_NEAR(norm * norm / energy, 1, 5 * std::sqrt(2.0 / 1024));
  }
}

// Chi-square of where blocks go, over groups of columns, at a number of groups that is a power of
// two and one that is not, and of the place within the group.
TEST(CountSketch, ColumnsAreUniform) {
  constexpr std::size_t kBlocks = 16000;
  for (const std::size_t groups : {64u, 100u}) {
    CountSketch sketch({.rows = 1, .columns = groups * 16, .seed = 11});
    std::vector<double> by_group(groups);
    std::vector<double> by_lane(16);
    for (std::size_t block = 0; block < kBlocks; ++block) {
      const auto column = place(sketch, block * 16 + 5).column;
      by_group[column / 16] += 1;
      by_lane[column % 16] += 1;
    }
    const auto chi_square = [](const std::vector<double>& counts) {
      const double expected = static_cast<double>(kBlocks) / static_cast<double>(counts.size());
      double sum = 0;
      for (const double count : counts) sum += (count - expected) * (count - expected) / expected;
      return sum;
    };
    // Mean n - 1, standard deviation sqrt(2 (n - 1)); five of them either way.
    for (const auto* counts : {&by_group, &by_lane}) {
      const auto degrees = static_cast<double>(counts->size() - 1);
      EXPECT_NEAR(chi_square(*counts), degrees, 5 * std::sqrt(2 * degrees));
    }
  }
}

// Over seeds, two elements of different blocks meet with probability 1 / columns, in the same lane
// or not; two of one block never do.
TEST(CountSketch, CollisionsOfPairs) {
  constexpr int kSeeds = 20000;
  constexpr std::size_t kColumns = 32;
  CountSketch sketch({.rows = 1, .columns = kColumns});
  for (const auto& [a, b] : {std::pair{0u, 16u}, {3u, 20u}, {7u, 7u + 16 * 1024}, {16u, 47u}}) {
    double met = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      sketch.reset(static_cast<std::uint64_t>(seed));
      met += place(sketch, a).column == place(sketch, b).column ? 1 : 0;
    }
    EXPECT_NEAR(met / kSeeds, 1.0 / kColumns, 5 * std::sqrt(1.0 / kColumns / kSeeds));
  }
  for (int seed = 0; seed < 100; ++seed) {
    sketch.reset(static_cast<std::uint64_t>(seed));
    EXPECT_NE(place(sketch, 0).column, place(sketch, 15).column);
  }
}

// Products of one to four signs are zero on average: neighbours in a block, the same lane of
// neighbouring blocks, and four elements whose block numbers XOR to zero, which is where hashing by
// tables of characters fails.
TEST(CountSketch, SignsAreIndependentInFours) {
  constexpr int kSeeds = 20000;
  CountSketch sketch({.rows = 1, .columns = 16});
  const std::vector<std::vector<std::uint64_t>> groups{{5},
                                                       {1000000},
                                                       {0, 1},
                                                       {3, 19},
                                                       {0, 17},
                                                       {0, 16 * 4096},
                                                       {0, 1, 2},
                                                       {16, 32, 48},
                                                       {0, 1, 2, 3},
                                                       {0, 16, 32, 48},
                                                       {16, 33, 50, 67},
                                                       {0, 16 * 256, 16 * 65536, 16 * 65792},
                                                       {5, 5 + 16 * 3, 5 + 16 * 5, 5 + 16 * 6}};
  for (const auto& group : groups) {
    double sum = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      sketch.reset(static_cast<std::uint64_t>(seed));
      int product = 1;
      for (const auto element : group) product *= place(sketch, element).sign;
      sum += product;
    }
    EXPECT_NEAR(sum / kSeeds, 0, 5 / std::sqrt(kSeeds)) << group[0] << ", " << group.size();
  }
}

// All ranks, releases and machines must use the same hash functions.
TEST(CountSketch, HashesAreForever) {
  std::vector<float> values(5000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 101) - 50;
  const auto sketch = sketch_of(values, {.rows = 3, .columns = 100, .seed = 42});
  EXPECT_EQ(sketch.columns(), 112u);
  EXPECT_EQ(checksum(std::as_bytes(sketch.cells())), 8483416291654720797u);
}

TEST(CountSketch, SavesAndLoads) {
  const auto sketch = sketch_of(normal_floats(1000, 7), {.rows = 3, .columns = 64, .seed = 5});
  const auto loaded = CountSketch::load(sketch.save());
  EXPECT_EQ(loaded.rows(), 3u);
  EXPECT_EQ(loaded.columns(), 64u);
  EXPECT_EQ(loaded.seed(), 5u);
  EXPECT_TRUE(std::ranges::equal(loaded.cells(), sketch.cells()));
  EXPECT_EQ(loaded.estimate(17), sketch.estimate(17));
}

// Cut and altered bytes are refused. If the checksum is repaired, the loaded sketch is finite.
TEST(CountSketch, HostileBytesAreRefused) {
  const auto good = sketch_of(normal_floats(100, 8), {.rows = 1, .columns = 32}).save();
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_THROW((void)CountSketch::load(std::span(good).first(length)), Error);
  }
  auto longer = good;
  longer.push_back({});
  EXPECT_THROW((void)CountSketch::load(longer), Error);
  std::mt19937 random(9);
  int loaded = 0;
  for (int i = 0; i < 5000; ++i) {
    auto bad = good;
    const std::size_t at = random() % (i % 2 == 0 ? 24 : bad.size());
    bad[at] ^= static_cast<std::byte>(1 + random() % 255);
    EXPECT_THROW((void)CountSketch::load(bad), Error);
    store_value<std::uint64_t>(bad, bad.size() - 8,
                               checksum(std::span<const std::byte>(bad).first(bad.size() - 8)));
    try {
      const auto sketch = CountSketch::load(bad);
      for (const float cell : sketch.cells()) ASSERT_TRUE(std::isfinite(cell));
      ++loaded;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_frame);
    }
  }
  EXPECT_GT(loaded, 100);  // another seed or another cell is a sketch, too
}

TEST(CountSketch, BadUseIsAnError) {
  EXPECT_THROW(CountSketch({.rows = 2, .columns = 16}), Error);
  EXPECT_THROW(CountSketch({.rows = 17, .columns = 16}), Error);
  EXPECT_THROW(CountSketch({.columns = 0}), Error);
  CountSketch sketch({.columns = 16});
  EXPECT_THROW(sketch.merge(CountSketch({.columns = 32})), Error);
  EXPECT_THROW(sketch.merge(CountSketch({.columns = 16, .seed = 1})), Error);
  EXPECT_THROW(sketch.accumulate(std::vector<float>(5), 8), Error);
  EXPECT_THROW(sketch.add(std::uint64_t{1} << 36, 1), Error);
}

}  // namespace
}  // namespace thinreduce::count_sketch_test
