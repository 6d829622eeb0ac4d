#include "thinreduce/methods/sketch/nomination.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "thinreduce/error.h"

namespace thinreduce {
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
}  // namespace thinreduce
