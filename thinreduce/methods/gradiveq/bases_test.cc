// The exchange of bases, against a peer that sends anything.
#include "thinreduce/methods/gradiveq/bases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"
#include "thinreduce/transport/transport.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce::bases_test {
namespace {

constexpr std::size_t kSlice = 16;
constexpr std::size_t kSize = 3;

struct Message {
  std::array<std::byte, 24> head{};
  std::vector<float> columns = std::vector<float>(kSlice * kSize);
};

// The first unit vectors.
Message good_message() {
  Message message;
  for (std::size_t j = 0; j < kSize; ++j) message.columns[j * kSize + j] = 1;
  store_value<std::uint32_t>(message.head, 4, kSize);
  store_value(message.head, 8, 0.5f);
  store_value(message.head, 16, checksum(std::as_bytes(std::span(message.columns))));
  return message;
}

constexpr FrameId kId{.step = 12};

// Rank 0 sends `message` as its basis; what rank 1 made of it: nothing, or an error's text.
std::string received(const Message& message, GradiveqLayer& layer) {
  GradiveqSettings settings;
  settings.slice = kSlice;
  BucketLayout layout{.id = 0, .elements = 4 * kSlice, .tensors = {}};
  GradiveqState state(settings, {.layout = layout, .rank = 1, .world = 2, .seed = 0});
  auto transports = connect_threads(2);
  std::jthread peer([&] {
    Exchange exchange(*transports[0], Seconds(20), kId);
    std::vector<std::byte> bytes(message.head.begin(), message.head.end());
    const auto columns = std::as_bytes(std::span(message.columns));
    bytes.insert(bytes.end(), columns.begin(), columns.end());
    try {
      gather(exchange, bytes, 0, [](int, std::span<const std::byte>) {});
    } catch (const Error&) {
      // The other rank had enough.
    }
  });
  std::string error;
  Exchange exchange(*transports[1], Seconds(20), kId);
  try {
    auto bases = exchange_bases(state, {0}, exchange);
    adopt(std::move(bases.at(0)), kId.step, state.layers[0]);
    layer = state.layers[0];
  } catch (const Error& refused) {
    error = refused.what();
    EXPECT_THAT(error, testing::HasSubstr("rank 0"));
    transports[1]->abandon(error);
  }
  return error;
}

TEST(GradiveqBases, AGoodBasisArrives) {
  GradiveqLayer layer;
  EXPECT_EQ(received(good_message(), layer), "");
  EXPECT_EQ(layer.basis.columns(), good_message().columns);
  EXPECT_EQ(layer.mean_weight, 0.5f);
  EXPECT_TRUE(layer.fresh && layer.decided);
}

TEST(GradiveqBases, ABadBasisIsRefusedNamingItsRank) {
  GradiveqLayer layer;
  const auto expect = [&](const Message& message, const char* why) {
    const auto error = received(message, layer);
    EXPECT_THAT(error, testing::HasSubstr("rank 0"));
    EXPECT_THAT(error, testing::HasSubstr(why));
  };
  auto message = good_message();
  store_value<std::uint32_t>(message.head, 0, 1);
  expect(message, "order 1 of 1");
  message = good_message();
  store_value<std::uint32_t>(message.head, 4, kSlice + 1);
  expect(message, "17 columns for slices of 16");
  message = good_message();
  store_value<std::uint32_t>(message.head, 4, kSize - 1);
  message.columns.assign(kSlice * kSize, 0);
  message.columns[0] = message.columns[3] = 1;  // two unit vectors
  store_value(message.head, 16,
              checksum(std::as_bytes(std::span(message.columns).first(kSlice * (kSize - 1)))));
  expect(message, "bytes too many");
  message = good_message();
  store_value(message.head, 8, std::nanf(""));
  expect(message, "weight of the mean");
  message = good_message();
  store_value<std::uint32_t>(message.head, 12, 1);
  expect(message, "must be 0 and is 1");
  message = good_message();
  message.columns[0] = -1;
  expect(message, "checksum");
  for (const float bad : {2.0f, std::nanf(""), INFINITY}) {
    message = good_message();
    message.columns[0] = bad;
    store_value(message.head, 16, checksum(std::as_bytes(std::span(message.columns))));
    expect(message, "norm");
  }
}

// Flipped bits anywhere: refused, or a basis that is as good as any.
TEST(GradiveqBases, NoMessageDoesHarm) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    auto message = good_message();
    auto bytes = i % 2 == 0 ? std::span<std::byte>(message.head)
                            : std::as_writable_bytes(std::span(message.columns));
    bytes[random() % bytes.size()] ^= static_cast<std::byte>(1U << (random() % 8));
    if (i % 3 == 0) {
      store_value(message.head, 16, checksum(std::as_bytes(std::span(message.columns))));
    }
    GradiveqLayer layer;
    if (!received(message, layer).empty()) continue;
    for (const float value : layer.basis.columns()) ASSERT_LT(std::abs(value), 1.01f);
  }
}

}  // namespace
}  // namespace thinreduce::bases_test
