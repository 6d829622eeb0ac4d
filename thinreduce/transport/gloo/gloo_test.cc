#include "thinreduce/transport/gloo/gloo.h"

#include <gloo/rendezvous/hash_store.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/gloo_world.h"

namespace thinreduce::gloo_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class GlooWorld : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, GlooWorld, testing::Values(1, 2, 3, 4));

TEST_P(GlooWorld, EveryPairExchangesEverySizeOnEveryChannel) {
  constexpr std::array<std::size_t, 6> sizes = {0, 1, 4097, 0, 65537, 8 << 20};
  constexpr std::array channels = {Channel::data, Channel::header, Channel::agreement};
  run_gloo_ranks(GetParam(), [&](Transport& transport) {
    const int me = transport.rank();
    struct Incoming {
      std::vector<std::byte> bytes;
      std::vector<std::byte> expected;
    };
    std::vector<std::vector<std::byte>> outgoing;
    std::vector<std::unique_ptr<Incoming>> incoming;
    std::vector<Pending> pending;
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer == me) continue;
      for (const Channel channel : channels) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          // 8 MB once per pair is enough.
          const std::size_t size = channel == Channel::data ? sizes[i] : sizes[i] % (1 << 20);
          const auto seed = [&](int from, int to) {
            return from * 1000 + to * 100 + static_cast<int>(channel) * 10 + static_cast<int>(i);
          };
          outgoing.push_back(pattern(size, seed(me, peer)));
          incoming.push_back(std::make_unique<Incoming>());
          incoming.back()->bytes.resize(size);
          incoming.back()->expected = pattern(size, seed(peer, me));
          pending.push_back(transport.send(peer, channel, outgoing.back()));
          pending.push_back(transport.receive(peer, channel, incoming.back()->bytes));
        }
      }
    }
    for (const Pending& one : pending) one->wait(soon());
    for (const auto& one : incoming) EXPECT_TRUE(one->bytes == one->expected);
    const auto traffic = transport.total_traffic();
    EXPECT_EQ(traffic.messages_sent, outgoing.size());
    EXPECT_EQ(traffic.bytes_sent, traffic.bytes_received);
  });
}

TEST_P(GlooWorld, NativeSumAddsUp) {
  run_gloo_ranks(GetParam(), [](Transport& transport) {
    for (const std::size_t count : {0, 1, 7, 100003}) {
      std::vector<float> values(count);
      std::iota(values.begin(), values.end(), static_cast<float>(transport.rank()));
      ASSERT_TRUE(transport.native_sum(values));
      const int world = transport.size();
      for (std::size_t i = 0; i < count; i += 101) {
        const int ranks = world * (world - 1) / 2;
        EXPECT_EQ(values[i], static_cast<float>(world * static_cast<int>(i) + ranks));
      }
    }
  });
}

TEST(Gloo, KeepsOrderWithinAChannelWhoeverIsFirst) {
  for (const bool receiver_first : {false, true}) {
    run_gloo_ranks(2, [&](Transport& transport) {
      constexpr int count = 200;
      std::vector<int> numbers(count, -1);
      std::vector<Pending> pending;
      const bool sends = transport.rank() == 0;
      if (sends) std::iota(numbers.begin(), numbers.end(), 0);
      if (sends == receiver_first) std::this_thread::sleep_for(milliseconds(50));
      for (int& number : numbers) {
        auto bytes = std::as_writable_bytes(std::span(&number, 1));
        pending.push_back(sends ? transport.send(1, Channel::data, bytes)
                                : transport.receive(0, Channel::data, bytes));
      }
      for (const Pending& one : pending) one->wait(soon());
      for (int i = 0; i < count; ++i) EXPECT_EQ(numbers[static_cast<std::size_t>(i)], i);
    });
  }
}

TEST(Gloo, ChannelsDoNotWaitForEachOther) {
  run_gloo_ranks(2, [](Transport& transport) {
    const int peer = 1 - transport.rank();
    auto data = pattern(1 << 20, transport.rank());
    auto header = pattern(10, transport.rank() + 5);
    // Both send data first, but receive it last.
    const Pending first = transport.send(peer, Channel::data, data);
    const Pending second = transport.send(peer, Channel::header, header);
    std::vector<std::byte> got(10);
    transport.receive(peer, Channel::header, got)->wait(soon());
    EXPECT_TRUE(got == pattern(10, peer + 5));
    got.resize(1 << 20);
    transport.receive(peer, Channel::data, got)->wait(soon());
    EXPECT_TRUE(got == pattern(1 << 20, peer));
    first->wait(soon());
    second->wait(soon());
  });
}

TEST(Gloo, MeetsThroughSomebodyElsesStore) {
  gloo::rendezvous::HashStore store;
  std::vector<std::thread> threads;
  std::atomic<int> connected = 0;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto transport = connect_gloo(options_for(rank, 3, 1), store);
      std::vector<float> one(1, 1.0f);
      EXPECT_TRUE(transport->native_sum(one));
      if (one[0] == 3.0f) ++connected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(connected, 3);
}

}  // namespace
}  // namespace thinreduce::gloo_test
