#include "thinreduce/methods/topk/payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/random_data.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce::topk_payload_test {
namespace {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

struct Selection {
  std::vector<std::uint32_t> indices;
  Floats values;
};

Bytes written(const Selection& selection, std::size_t elements) {
  Bytes payload;
  write_topk_payload({selection.indices, selection.values}, elements, payload);
  return payload;
}

std::string refusal(const Bytes& payload, std::size_t elements) {
  Floats sum(elements);
  try {
    add_topk_payload(payload, 3, sum);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_frame);
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 3"));
    return error.what();
  }
  return "accepted";
}

Selection random_selection(std::size_t elements, std::size_t one_in, unsigned seed) {
  std::mt19937 random(seed);
  Selection selection;
  for (std::size_t i = 0; i < elements; ++i) {
    if (random() % one_in != 0) continue;
    selection.indices.push_back(static_cast<std::uint32_t>(i));
    selection.values.push_back(static_cast<float>(random() % 1000) - 500.5f);
  }
  return selection;
}

// The bytes that docs/methods/topk.md promises.
TEST(TopKPayload, Layout) {
  const Bytes payload = written({{1, 65536 + 2}, {1.0f, -2.0f}}, 65536 + 3);
  const std::vector<int> expected = {1, 0, 0,    0,    1, 0, 0, 0,      // counts
                                     1, 0, 2,    0,                     // offsets
                                     0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0};  // values
  ASSERT_EQ(payload.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(payload[i]), expected[i]) << "byte " << i;
  }
}

TEST(TopKPayload, ComesBackAtEverySize) {
  for (const std::size_t elements : {1u, 2u, 1009u, 65535u, 65536u, 65537u, 200003u}) {
    for (const std::size_t one_in : {1, 3, 100}) {
      const auto selection = random_selection(elements, one_in, 1);
      const auto payload = written(selection, elements);
      EXPECT_LE(payload.size(), topk_payload_limit(elements, selection.indices.size()));
      Floats sum(elements, 2.0f), expected(elements, 2.0f);
      add_topk_payload(payload, 0, sum);
      for (std::size_t i = 0; i < selection.indices.size(); ++i) {
        expected[selection.indices[i]] += selection.values[i];
      }
      EXPECT_EQ(sum, expected);
    }
  }
}

TEST(TopKPayload, NothingSelectedIsEmpty) {
  EXPECT_TRUE(written({}, 1000).empty());
  EXPECT_EQ(refusal({}, 1000), "accepted");
}

TEST(TopKPayload, RefusesWhatIsWrong) {
  constexpr std::size_t kElements = 65536 + 10;
  const Bytes good = written({{5, 6, 65536 + 9}, {1, 2, 3}}, kElements);
  EXPECT_EQ(refusal(good, kElements), "accepted");
  const auto changed = [&](auto value, std::size_t at) {
    Bytes payload = good;
    store_value(std::span(payload), at, value);
    return refusal(payload, kElements);
  };
  EXPECT_THAT(changed(std::uint32_t{11}, 4),
              testing::HasSubstr("has 11 values, but only 10 elements"));
  EXPECT_THAT(changed(std::uint32_t{3}, 0), testing::HasSubstr("is cut"));
  EXPECT_THAT(changed(std::uint32_t{1}, 0), testing::HasSubstr("bytes too many"));
  EXPECT_THAT(changed(std::uint16_t{6}, 8),
              testing::HasSubstr("offset 6 must be larger than the one before it, 6"));
  EXPECT_THAT(changed(std::uint16_t{4}, 10),
              testing::HasSubstr("offset 4 must be larger than the one before it, 5"));
  EXPECT_THAT(changed(std::uint16_t{10}, 12), testing::HasSubstr("offset 10 must be below 10"));
  EXPECT_THAT(changed(std::numeric_limits<float>::infinity(), 14), testing::HasSubstr("inf"));
  EXPECT_THAT(changed(std::numeric_limits<float>::quiet_NaN(), 22), testing::HasSubstr("nan"));
  Bytes longer = good;
  longer.push_back({});
  EXPECT_THAT(refusal(longer, kElements), testing::HasSubstr("1 bytes too many"));
  for (std::size_t length = 1; length < good.size(); ++length) {
    EXPECT_NE(refusal(Bytes(good.begin(), good.begin() + static_cast<long>(length)), kElements),
              "accepted");
  }
  EXPECT_NE(refusal(good, 0), "accepted");
}

// bfloat16 values: two bytes each, rounded to nearest, and refused if they are not finite.
TEST(TopKPayload, Bf16Values) {
  const Floats values = {1.0f, -2.0f, 1.00390625f, 1.01171875f, 3.4e38f, -1e-40f};
  Floats rounded;
  round_to_bf16(values, rounded);
  EXPECT_EQ(rounded[2], 1.0f);  // ties go to even
  EXPECT_EQ(rounded[3], 1.015625f);
  EXPECT_EQ(rounded[4], 0x1.fep127f);  // the nearest would be Inf
  std::vector<std::uint32_t> indices(values.size());
  std::iota(indices.begin(), indices.end(), 0u);
  Bytes payload;
  write_topk_payload({indices, rounded}, values.size(), payload, TopKValues::bf16);
  EXPECT_EQ(payload.size(), 4 + 4 * values.size());
  EXPECT_EQ(payload.size(), topk_payload_limit(values.size(), values.size(), TopKValues::bf16));
  Floats sum(values.size());
  add_topk_payload(payload, 1, sum, TopKValues::bf16);
  EXPECT_EQ(sum, rounded);
  store_value(std::span(payload), payload.size() - 2, std::uint16_t{0x7f80});
  EXPECT_THROW(add_topk_payload(payload, 1, sum, TopKValues::bf16), Error);
}

// Thousands of altered and cut payloads: an Error, or a sum that is finite.
TEST(TopKPayload, HostileBytes) {
  std::mt19937 random(2);
  int refused = 0, accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::size_t elements = round % 100 == 0 ? 65536 * 2 + 77 : 1 + random() % 300;
    Bytes payload = written(random_selection(elements, 1 + random() % 20, random()), elements);
    damage(payload, random() % 4, random);
    // On the heap with its exact length, so that a sanitizer sees a read past the end.
    const Bytes exact(payload.begin(), payload.end());
    Floats sum(elements);
    try {
      add_topk_payload(exact, 1, sum);
      ++accepted;
      for (const float value : sum) ASSERT_TRUE(std::isfinite(value));
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(error.code(), ErrorCode::bad_frame);
    }
  }
  EXPECT_GT(refused, 5000);
  EXPECT_GT(accepted, 2000);
}

}  // namespace
}  // namespace thinreduce::topk_payload_test
