#include "thinreduce/kernels/rans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/test_data.h"
#include "thinreduce/error.h"

namespace thinreduce::kernels::rans_test {
namespace {

using Groups = std::vector<std::uint8_t>;
using Entries = std::array<RansEntry, 256>;

constexpr RansStates kFirstStates = {kRansMinState, kRansMinState, kRansMinState, kRansMinState,
                                     kRansMinState, kRansMinState, kRansMinState, kRansMinState};

// Frequencies that add up to kRansScale.
struct Tables {
  explicit Tables(const std::vector<std::uint32_t>& counts) {
    std::uint32_t start = 0;
    for (std::uint32_t group = 0; group < counts.size(); ++group) {
      if (counts[group] == 0) continue;
      entries[group] = rans_entry(start, counts[group]);
      std::fill_n(&group_at[start], counts[group], static_cast<std::uint8_t>(group));
      start += counts[group];
    }
    EXPECT_EQ(start, kRansScale);
  }
  Entries entries{};
  std::array<std::uint8_t, kRansScale> group_at{};  // as often as its frequency says
};

Groups draw(const Tables& tables, std::size_t size) {
  std::mt19937 random(5);
  Groups groups(size);
  for (auto& group : groups) group = tables.group_at[random() % kRansScale];
  return groups;
}

struct Coded {
  RansStates states = kFirstStates;
  std::vector<std::uint16_t> words;
  bool operator==(const Coded&) const = default;
};
template <typename Encode>
Coded code(const Tables& tables, const Groups& groups, const Encode& encode) {
  Coded coded;
  std::vector<std::uint16_t> words(groups.size() + kRansRoom);
  const std::size_t written = encode(tables.entries, groups, coded.states, words);
  coded.words.assign(words.end() - static_cast<std::ptrdiff_t>(written), words.end());
  return coded;
}

// One group that always occurs and so emits nothing, rare and frequent groups, all as frequent.
const std::vector<std::vector<std::uint32_t>> kFrequencies = {
    {4096}, {1, 4095}, {4094, 0, 1, 1}, {3, 100, 2000, 1993}, std::vector<std::uint32_t>(256, 16)};

TEST(Rans, EveryTargetWritesTheWordsOfTheReference) {
  for (const auto& counts : kFrequencies) {
    const Tables tables(counts);
    for (const std::size_t size : {0u, 1u, 7u, 8u, 9u, 16u, 63u, 1009u, 40000u}) {
      const Groups groups = draw(tables, size);
      const auto by_reference = [](auto&&... all) { return reference::rans_encode(all...); };
      const Coded expected = code(tables, groups, by_reference);
      on_every_target([&] {
        EXPECT_EQ(code(tables, groups, [](auto&&... all) { return rans_encode(all...); }), expected)
            << size << " groups of " << counts.size() << " kinds";
      });
    }
  }
}

TEST(Rans, TooFewWordsAreABug) {
  const Tables tables({4096});
  RansStates states = kFirstStates;
  const Groups groups(10);
  std::vector<std::uint16_t> words(groups.size() + kRansRoom - 1);
  EXPECT_THROW((void)rans_encode(tables.entries, groups, states, words), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::kernels::rans_test
