#include "thinreduce/methods/fft/pairs.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tests/test_data.h"
#include "thinreduce/error.h"

namespace thinreduce::kernels::pairs_test {
namespace {

// What collect_pairs finds, with its own memory.
struct Collected {
  explicit Collected(std::size_t pairs)
      : positions(pairs + kPairSlack),
        values(2 * (pairs + kPairSlack)),
        energies(pairs + kPairSlack),
        between(pairs + kPairSlack) {}
  PairRoom room() { return {positions, values, energies, between}; }
  void cut(const CollectedPairs& found) {
    positions.resize(found.pairs);
    values.resize(2 * found.pairs);
    energies.resize(found.pairs);
    between.resize(found.between);
  }
  std::vector<std::uint16_t> positions;
  std::vector<float> values;
  std::vector<float> energies;
  std::vector<float> between;
};

// The sign of a NaN depends on the CPU.
TEST(Pairs, NanOfEitherSignIsCollected) {
  on_every_target([] {
    std::vector<float> spectrum(128);
    spectrum[3] = std::numeric_limits<float>::quiet_NaN();
    spectrum[5] = -std::numeric_limits<float>::quiet_NaN();
    Collected collected(64);
    const auto found = collect_pairs(spectrum, {}, collected.room());
    collected.cut(found);
    EXPECT_EQ(collected.positions, (std::vector<std::uint16_t>{3, 5}));
    EXPECT_EQ(found.between, 2u);
  });
}

TEST(Pairs, CollectEqualsTheReferenceOnEveryTarget) {
  for (const std::size_t words : {0u, 1u, 5u, 32u, 1024u}) {
    const auto spectrum = mixed_floats(words * 128, 5);
    const Thresholds thresholds{0.5f, std::bit_cast<std::uint32_t>(0.1f),
                                std::bit_cast<std::uint32_t>(0.7f)};
    Collected expected(words * 64);
    const auto all = reference::collect_pairs(spectrum, thresholds, expected.room());
    expected.cut(all);
    EXPECT_TRUE(words == 0 || (0 < all.between && all.between < all.pairs));
    on_every_target([&] {
      for (const std::size_t offset : kOffsets) {
        Guarded<float> in(std::span<const float>(spectrum), offset);
        Collected collected(words * 64);
        const auto found = collect_pairs(in.span(), thresholds, collected.room());
        collected.cut(found);
        EXPECT_TRUE(found.energy == all.energy ||
                    (std::isinf(found.energy) && std::isinf(all.energy)));
        EXPECT_EQ(collected.positions, expected.positions);
        EXPECT_TRUE(same_bits<float>(collected.values, expected.values));
        EXPECT_TRUE(same_bits<float>(collected.energies, expected.energies));
        EXPECT_TRUE(same_bits<float>(collected.between, expected.between));
      }
    });
  }
}

TEST(Pairs, TooLittleRoomAndHalfRowsAreABug) {
  std::vector<float> spectrum(128);
  Collected little(63);
  EXPECT_THROW((void)collect_pairs(spectrum, {}, little.room()), BrokenInvariant);
  Collected enough(64);
  EXPECT_THROW((void)collect_pairs(std::span(spectrum).first(16), {}, enough.room()),
               BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::kernels::pairs_test
