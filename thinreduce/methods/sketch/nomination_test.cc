#include "thinreduce/methods/sketch/nomination.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "thinreduce/error.h"

namespace thinreduce::nomination_test {
namespace {

std::vector<std::byte> written(const std::vector<std::uint32_t>& named, std::size_t elements) {
  std::vector<std::byte> message(nomination_bytes(elements, named.size()), std::byte{77});
  write_nomination(named, message);
  return message;
}

TEST(Nomination, ComesBack) {
  std::mt19937 random(1);
  for (const std::size_t elements : {1u, 2u, 254u, 255u, 256u, 257u, 509u, 510u, 511u, 5003u}) {
    for (const unsigned every : {1u, 3u, 40u, 700u}) {
      std::vector<std::uint32_t> named;
      for (std::uint32_t i = 0; i < elements; ++i) {
        if (random() % every == 0 || i + 1 == elements) named.push_back(i);
      }
      std::vector<std::uint32_t> read{9, 9};
      read_nomination(written(named, elements), 0, elements, read);
      EXPECT_EQ(read, named);
      // Also in a message with room for more.
      std::vector<std::byte> longer(nomination_bytes(elements, named.size() + 9));
      write_nomination(named, longer);
      read_nomination(longer, 0, elements, read);
      EXPECT_EQ(read, named);
    }
  }
}

TEST(Nomination, OfNothing) {
  std::vector<std::uint32_t> read{1};
  read_nomination(written({}, 1000), 0, 1000, read);
  EXPECT_TRUE(read.empty());
  read_nomination({}, 0, 0, read);
  EXPECT_TRUE(read.empty());
}

TEST(Nomination, TakesAByteEach) {
  EXPECT_EQ(nomination_bytes(1'000'000, 30'000), 30'000 + 1'000'000 / 255);
}

// Every element is at one place of one rank, all ranks together name as many as they may, and their
// names come back in the order of the elements.
TEST(NominationTurns, DealEveryElementOnce) {
  for (const int world : {1, 2, 3, 8}) {
    for (const std::size_t elements : {0u, 1u, 63u, 64u, 65u, 1009u, 5003u, 9 * 64u}) {
      for (const std::uint64_t step : {0u, 1u, 11u}) {
        const std::size_t max = elements / 3;
        const NominationTurns turns(elements, max, world, step);
        std::vector<int> dealt(elements);
        std::vector<std::vector<std::uint32_t>> named(static_cast<std::size_t>(world));
        std::vector<std::uint32_t> expected;
        std::size_t may_name = 0;
        for (int rank = 0; rank < world; ++rank) {
          may_name += turns.max_named(rank);
          ASSERT_LE(turns.max_named(rank), turns.places(rank));
          turns.for_runs(rank, {0, turns.places(rank)},
                         [&](std::size_t place, std::size_t first, std::size_t count) {
                           ASSERT_EQ(turns.element(rank, place), first);
                           for (std::size_t i = 0; i < count; ++i) ++dealt[first + i];
                         });
          for (std::uint32_t place = 0; place < turns.places(rank); place += 1 + place % 3) {
            named[static_cast<std::size_t>(rank)].push_back(place);
            expected.push_back(static_cast<std::uint32_t>(turns.element(rank, place)));
          }
        }
        EXPECT_EQ(may_name, max);
        EXPECT_EQ(std::ranges::count(dealt, 1), static_cast<std::ptrdiff_t>(elements));
        std::vector<std::uint32_t> joined{7};
        turns.join(named, joined);
        std::ranges::sort(expected);
        EXPECT_EQ(joined, expected);
      }
    }
  }
}

// The ranks take turns: each names elements of the first block in one of N steps.
TEST(NominationTurns, MoveOnWithTheStep) {
  for (std::uint64_t step = 0; step < 6; ++step) {
    const NominationTurns turns(5000, 100, 3, step);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(turns.element(rank, 0), (static_cast<std::uint64_t>(rank) + step) % 3 * 64);
    }
  }
}

// Any bytes name ascending elements of the bucket, no more than there are bytes, or are refused.
TEST(Nomination, HostileBytesAreRefused) {
  std::mt19937 random(2);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::size_t elements = 1 + random() % 2000;
    std::vector<std::byte> message(random() % 40);
    for (auto& byte : message) byte = static_cast<std::byte>(random() % (1 + random() % 256));
    std::vector<std::uint32_t> read;
    try {
      read_nomination(message, 3, elements, read);
      ASSERT_LE(read.size(), message.size());
      ASSERT_TRUE(read.empty() || read.back() < elements);
      ASSERT_EQ(std::ranges::adjacent_find(read, std::greater_equal()), read.end());
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::bad_frame);
      ASSERT_THAT(error.what(), testing::HasSubstr("rank 3"));
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_LT(refused, 3500);
}

}  // namespace
}  // namespace thinreduce::nomination_test
