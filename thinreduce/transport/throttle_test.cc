#include "thinreduce/transport/throttle.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/ranks.h"
#include "tests/tracks.h"
#include "thinreduce/collective/ring.h"
#include "thinreduce/error.h"
#include "thinreduce/transport/lane.h"

namespace thinreduce::throttle_test {
namespace {

using namespace std::chrono_literals;

TEST(Link, ParsesWhatPeopleWrite) {
  EXPECT_DOUBLE_EQ(Link::parse("1gbit").bytes_per_second, 125e6);
  EXPECT_DOUBLE_EQ(Link::parse("100mbit,5ms").bytes_per_second, 12.5e6);
  EXPECT_DOUBLE_EQ(Link::parse("100mbit,5ms").latency.count(), 0.005);
  EXPECT_DOUBLE_EQ(Link::parse("2.5gbit,200us").latency.count(), 0.0002);
  EXPECT_DOUBLE_EQ(Link::parse("56kbit,1s").latency.count(), 1.0);
  EXPECT_FALSE(Link::parse("unlimited").limits());
  EXPECT_TRUE(Link::parse("unlimited,1ms").limits());
  EXPECT_EQ(Link::parse("100mbit,5ms").to_string(), "100mbit,5ms");
  EXPECT_EQ(Link::parse("100Mbit,5MS").to_string(), "100mbit,5ms");
  EXPECT_FALSE(Link::parse("Unlimited").limits());
  for (const char* text : {"1gbit,3601s", "0.5bit", "1e-300kbit", "1e12gbit", "1gbit,1e14s"}) {
    thrown_text(ErrorCode::bad_input, [&] { (void)Link::parse(text); });
  }
}

TEST(Link, RefusesTheRest) {
  for (const char* text :
       {"", "fast", "1", "1gb", "-1gbit", "0mbit", "1gbit,", "1gbit,5", "1gbit,5 ms", "1gbit,5ms,",
        "100Mb", "100MB", "nangbit", "infgbit", "1e30gbit"}) {
    const auto said = thrown_text(ErrorCode::bad_input, [&] { (void)Link::parse(text); });
    EXPECT_NE(said.find("link '"), std::string::npos) << said;
  }
}

// Returns the seconds that `messages` messages of `bytes` from rank 0 to rank 1 take over `link`.
double transfer_seconds(const Link& link, int messages, std::size_t bytes) {
  double seconds = 0;
  const auto start = Clock::now();  // before either rank runs: the sender may start first
  run_ranks(2, [&](std::unique_ptr<Transport> inner) {
    auto transport = throttle(std::move(inner), link);
    std::vector<std::byte> memory(bytes);
    std::vector<Pending> pending;
    for (int i = 0; i < messages; ++i) {
      pending.push_back(transport->rank() == 0 ? transport->send(1, Channel::data, memory)
                                               : transport->receive(0, Channel::data, memory));
    }
    for (auto& operation : pending) operation->wait(Deadline::after(30s));
    if (transport->rank() == 1) seconds = Seconds(Clock::now() - start).count();
    EXPECT_EQ(transport->total_traffic().bytes_sent,
              transport->rank() == 0 ? static_cast<std::uint64_t>(messages) * bytes : 0U);
  });
  return seconds;
}

// A link never delivers early. How late it is depends on the machine and is left to benchmarks.
TEST(Throttle, BandwidthAndLatencyAreLowerBounds) {
  EXPECT_GE(transfer_seconds(Link::parse("80mbit"), 4, 100'000), 0.040);
  EXPECT_GE(transfer_seconds(Link::parse("unlimited,20ms"), 1, 1000), 0.020);
  EXPECT_GE(transfer_seconds(Link::parse("80mbit,50ms"), 4, 100'000), 0.090);
}

TEST(Throttle, ManySendersShareTheReceiversLink) {
  const auto start = Clock::now();
  run_ranks(4, [&](std::unique_ptr<Transport> inner) {
    auto transport = throttle(std::move(inner), Link::parse("80mbit"));
    std::vector<std::byte> memory(300'000);
    const auto part = [&](int peer) {
      return std::span(memory).subspan(static_cast<std::size_t>(peer - 1) * 100'000, 100'000);
    };
    if (transport->rank() != 0) {
      transport->send(0, Channel::data, part(1))->wait(Deadline::after(30s));
      return;
    }
    std::vector<Pending> pending;
    for (int peer = 1; peer < 4; ++peer) {
      pending.push_back(transport->receive(peer, Channel::data, part(peer)));
    }
    for (auto& operation : pending) operation->wait(Deadline::after(30s));
    EXPECT_GE(Seconds(Clock::now() - start).count(), 0.030);
  });
}

// The model's times are exact, whatever the load of the machine.
// A receiver waits for the header of the next message before the payload of this one. The payload
// came first all the same.
TEST(Lane, AMessageThatIsAskedForLaterPassesBeforeOneThatComesAfterIt) {
  const auto start = Clock::now();
  Lane lane(10e6);
  const std::chrono::milliseconds ms{1};
  EXPECT_EQ(lane.pass(start + 10 * ms, 10'000), start + 11 * ms);  // the next header
  EXPECT_EQ(lane.pass(start, 100'000), start + 10 * ms);           // the payload before it
  EXPECT_EQ(lane.pass(start + 11 * ms, 100'000), start + 21 * ms);
  EXPECT_EQ(lane.pass(start + 5 * ms, 10'000), start + 22 * ms) << "the link is used once";
}

TEST(Lane, MessagesQueueBehindOneAnotherAndAnIdleLaneIsFree) {
  const Clock::time_point start{1h};
  Lane lane(10e6);
  EXPECT_EQ(lane.pass(start, 100'000), start + 10ms);
  EXPECT_EQ(lane.pass(start, 100'000), start + 20ms);        // queued at the same moment
  EXPECT_EQ(lane.pass(start + 15ms, 50'000), start + 25ms);  // while the second passes
  EXPECT_EQ(lane.pass(start + 1s, 100'000),
            start + 1010ms);  // after a pause: idle time is not saved up
  EXPECT_EQ(lane.pass(start + 2s, 0), start + 2s);
  Lane unlimited(0);
  EXPECT_EQ(unlimited.pass(start, 1'000'000'000), start);
}

TEST(Throttle, ALinkOnSomeRanksOnlyIsNamedOnAll) {
  const auto thrown = try_ranks(3, [](std::unique_ptr<Transport> inner) {
    const Link link = inner->rank() == 2 ? Link::parse("5mbit,1ms") : Link{};
    (void)throttle(std::move(inner), link);
  });
  for (const auto& one : thrown) {
    const auto text = error_text(one, ErrorCode::mismatch);
    EXPECT_NE(text.find("rank 2 emulates a link of 5mbit,1ms, rank 0 none"), std::string::npos)
        << text;
  }
}

TEST(Throttle, LinksMayDifferAndNoLinkChangesNothing) {
  run_ranks(2, [](std::unique_ptr<Transport> inner) {
    const Transport* own = inner.get();
    auto same = throttle(std::move(inner), Link{});
    EXPECT_EQ(same.get(), own);
    const auto link = Link::parse(same->rank() == 0 ? "1gbit" : "2gbit");
    EXPECT_NE(throttle(std::move(same), link).get(), own);
  });
}

TEST(Throttle, TracksAreIndependent) {
  run_ranks(2, [](std::unique_ptr<Transport> inner) {
    use_tracks(*throttle(std::move(inner), Link::parse("1gbit,1ms")));
  });
}

TEST(Throttle, AMessageThatCantArriveInTimeIsAnError) {
  const auto thrown = try_ranks(2, [](std::unique_ptr<Transport> inner) {
    auto transport = throttle(std::move(inner), Link::parse("8kbit"));
    std::vector<std::byte> memory(100'000);  // 100 s
    auto pending = transport->rank() == 0 ? transport->send(1, Channel::data, memory)
                                          : transport->receive(0, Channel::data, memory);
    pending->wait(Deadline::after(Seconds(20)));  // which the sender, too, may need to start
  });
  EXPECT_NE(error_text(thrown[1], ErrorCode::timeout).find("8kbit"), std::string::npos);
}

}  // namespace
}  // namespace thinreduce::throttle_test
