#include "thinreduce/transport/transport.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>

#include "tests/ranks.h"
#include "tests/tracks.h"
#include "thinreduce/error.h"

namespace thinreduce::threads_test {
namespace {

using namespace std::chrono_literals;

std::vector<std::byte> pattern(std::size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(seed) * 31);
  }
  return bytes;
}

class Threads : public testing::TestWithParam<int> {};

TEST_P(Threads, EverybodyHearsEverybodyOnEveryChannel) {
  run_ranks(GetParam(), [](std::unique_ptr<Transport> transport) {
    const int world = transport->size();
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in;
    std::vector<Pending> pending;
    const std::vector<std::size_t> sizes{0, 1, 17, 100003};
    out.reserve(100);
    in.reserve(100);
    for (const std::size_t size : sizes) {
      for (const Channel channel : {Channel::data, Channel::header, Channel::agreement}) {
        for (int peer = 0; peer < world; ++peer) {
          if (peer == transport->rank()) continue;
          out.push_back(pattern(size, transport->rank()));
          pending.push_back(transport->send(peer, channel, out.back()));
          in.emplace_back(size);
          pending.push_back(transport->receive(peer, channel, in.back()));
        }
      }
    }
    for (auto& operation : pending) operation->wait(Deadline::after(60s));
    std::size_t next = 0;
    for (const std::size_t size : sizes) {
      for (int channel = 0; channel < 3; ++channel) {
        for (int peer = 0; peer < world; ++peer) {
          if (peer == transport->rank()) continue;
          EXPECT_EQ(in[next++], pattern(size, peer));
        }
      }
    }
    const std::uint64_t bytes = 3 * (0 + 1 + 17 + 100003);
    for (int peer = 0; world > 1 && peer < world; ++peer) {
      const Traffic traffic = transport->traffic()[static_cast<std::size_t>(peer)];
      EXPECT_EQ(traffic.bytes_sent, peer == transport->rank() ? 0 : bytes);
      EXPECT_EQ(traffic.bytes_received, peer == transport->rank() ? 0 : bytes);
      EXPECT_EQ(traffic.messages_sent, peer == transport->rank() ? 0U : 12U);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Threads, testing::Values(1, 2, 3, 4, 7));

TEST(Threads, DeadlineNamesThePeer) {
  auto ranks = connect_threads(3);
  std::byte byte{};
  auto receive = ranks[0]->receive(2, Channel::data, std::span(&byte, 1));
  const auto text =
      thrown_text(ErrorCode::timeout, [&] { receive->wait(Deadline::after(Seconds(0.02))); });
  EXPECT_NE(text.find("rank 0: waited 0.02 s for rank 2, which is alive"), std::string::npos)
      << text;
}

// Rank 0 waits for rank 1, which waits for rank 0 on another channel and for rank 2, which waits
// for nobody.
TEST(Threads, DeadlineNamesTheRankThatKeepsThePeerWaiting) {
  auto ranks = connect_threads(3);
  std::array<std::byte, 3> bytes{};
  auto receive = ranks[0]->receive(1, Channel::data, std::span(bytes).subspan(0, 1));
  auto from_first = ranks[1]->receive(0, Channel::header, std::span(bytes).subspan(1, 1));
  auto from_last = ranks[1]->receive(2, Channel::data, std::span(bytes).subspan(2, 1));
  const auto expect_given_up = [](Operation& operation) {
    const auto text =
        thrown_text(ErrorCode::lost_peer, [&] { operation.wait(Deadline::after(60s)); });
    EXPECT_NE(text.find("rank 0 gave up: enough"), std::string::npos) << text;
  };
  const std::jthread first([&] { expect_given_up(*from_first); });
  std::string text;
  const auto wait = [&] {
    text = thrown_text(ErrorCode::timeout, [&] { receive->wait(Deadline::after(Seconds(0.02))); });
  };
  wait();
  EXPECT_NE(text.find("waited 0.02 s for rank 1, which is alive"), std::string::npos) << text;
  const std::jthread last([&] { expect_given_up(*from_last); });
  do {
    wait();
  } while (text.find("for rank 1, which") != std::string::npos);  // until the thread waits
  EXPECT_NE(text.find("rank 0: waited 0.02 s for rank 2, which is alive but does not take part "
                      "(receive of 1 bytes from rank 1)"),
            std::string::npos)
      << text;
  ranks[0]->abandon("enough");
}

// A thread that waits on one track does not hold up another, and their messages do not mix.
TEST(Threads, TracksAreIndependent) {
  run_ranks(2, [](std::unique_ptr<Transport> transport) { use_tracks(*transport); });
}

TEST(Threads, ARankThatLeavesFailsOnlyThoseWhoWaitForIt) {
  auto ranks = connect_threads(3);
  std::byte from_left{};
  std::byte from_alive{};
  auto lost = ranks[0]->receive(1, Channel::data, std::span(&from_left, 1));
  auto fine = ranks[0]->receive(2, Channel::data, std::span(&from_alive, 1));
  ranks[1].reset();
  const std::byte message{42};
  auto sent = ranks[2]->send(0, Channel::data, std::span(&message, 1));
  EXPECT_NO_THROW(fine->wait(Deadline::after(60s)));
  EXPECT_EQ(from_alive, message);
  const auto text = thrown_text(ErrorCode::lost_peer, [&] { lost->wait(Deadline::after(60s)); });
  EXPECT_NE(text.find("rank 1 has left"), std::string::npos) << text;
}

TEST(Threads, AbandonEndsEveryWaitWithTheReason) {
  auto ranks = connect_threads(3);
  std::byte byte{};
  auto receive = ranks[0]->receive(1, Channel::data, std::span(&byte, 1));
  ranks[2]->abandon("the disk is full");
  const auto text = thrown_text(ErrorCode::lost_peer, [&] { receive->wait(Deadline::after(60s)); });
  EXPECT_NE(text.find("rank 2 gave up: the disk is full"), std::string::npos) << text;
  // Final: no operation can be started afterwards, not even between the other two ranks.
  EXPECT_THROW((void)ranks[0]->receive(1, Channel::data, std::span(&byte, 1)), Error);
  EXPECT_THROW((void)ranks[1]->send(0, Channel::data, std::span(&byte, 1)), Error);
}

TEST(Threads, AnotherLengthThanExpectedIsAnErrorWithBoth) {
  auto ranks = connect_threads(2);
  std::vector<std::byte> in(5);
  const std::vector<std::byte> out(7);
  auto receive = ranks[0]->receive(1, Channel::data, in);
  auto send = ranks[1]->send(0, Channel::data, out);
  const auto text = thrown_text(ErrorCode::mismatch, [&] { receive->wait(Deadline::after(60s)); });
  EXPECT_NE(text.find("rank 1 sent 7 bytes where 5"), std::string::npos) << text;
}

TEST(Threads, ACancelledOperationGivesItsMemoryBack) {
  auto ranks = connect_threads(2);
  {
    std::vector<std::byte> gone(1000);
    auto receive = ranks[0]->receive(1, Channel::data, gone);
  }
  std::vector<std::byte> in(1000);
  const auto out = pattern(1000, 3);
  auto send = ranks[1]->send(0, Channel::data, out);
  auto receive = ranks[0]->receive(1, Channel::data, in);
  receive->wait(Deadline::after(60s));
  send->wait(Deadline::after(60s));
  EXPECT_EQ(in, out);
}

// A rank that gives up cancels its sends in some order, while its peer goes on receiving.
TEST(Threads, NoMessageTakesThePlaceOfACancelledOne) {
  auto ranks = connect_threads(2);
  const auto first = pattern(7, 1);
  const auto second = pattern(5, 2);
  auto cancelled = ranks[1]->send(0, Channel::data, first);
  auto after = ranks[1]->send(0, Channel::data, second);
  cancelled.reset();
  std::vector<std::byte> in(7);
  auto receive = ranks[0]->receive(1, Channel::data, in);
  auto later = ranks[1]->send(0, Channel::data, first);
  ranks[1]->abandon("the disk is full");
  const auto text = thrown_text(ErrorCode::lost_peer, [&] { receive->wait(Deadline::after(60s)); });
  EXPECT_NE(text.find("the disk is full"), std::string::npos) << text;
}

TEST(Threads, AWorldWithoutRanksIsRefused) {
  EXPECT_THROW(connect_threads(0), Error);
}

TEST(Threads, AMessageNeedsAnotherRank) {
  auto ranks = connect_threads(2);
  EXPECT_THROW((void)ranks[0]->send(0, Channel::data, {}), BrokenInvariant);
  EXPECT_THROW((void)ranks[0]->send(2, Channel::data, {}), BrokenInvariant);
}

}  // namespace
}  // namespace thinreduce::threads_test
