#include "thinreduce/transport/simulate.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tests/ranks.h"
#include "tests/tracks.h"
#include "thinreduce/collective/float_sum.h"
#include "thinreduce/collective/gather.h"
#include "thinreduce/transport/busy_times.h"

namespace thinreduce::simulate_test {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

// CPU time as these tests spend it, so that virtual times are exact on any machine.
thread_local nanoseconds spent{0};

using Work = std::function<void(SimulatedTransport&)>;

void run_cluster(int world, const std::string& links, const Work& work, int cores = 2) {
  auto ranks = simulate(
      connect_threads(world),
      {.links = ClusterLinks::parse(links), .cores = cores, .cpu_time = [] { return spent; }});
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&work, rank = std::move(rank)] {
      spent = 0ns;
      (void)rank->now();
      work(*rank);
    });
  }
  for (auto& thread : threads) thread.join();
}

nanoseconds time_of(const Transport& rank) {
  return rank.now().time_since_epoch();
}

void send(Transport& rank, int peer, std::size_t bytes) {
  const std::vector<std::byte> memory(bytes);
  rank.send(peer, Channel::data, memory)->wait(Deadline::after(1s));
}

void receive(Transport& rank, int peer, std::size_t bytes) {
  std::vector<std::byte> memory(bytes);
  rank.receive(peer, Channel::data, memory)->wait(Deadline::after(1s));
}

TEST(ClusterLinks, ParsesWhatPeopleWrite) {
  const auto links = ClusterLinks::parse("1gbit,5ms;3=100mbit,40ms;0=unlimited");
  EXPECT_DOUBLE_EQ(links.of(1).bytes_per_second, 125e6);
  EXPECT_DOUBLE_EQ(links.of(3).bytes_per_second, 12.5e6);
  EXPECT_DOUBLE_EQ(links.of(3).latency.count(), 0.04);
  EXPECT_FALSE(links.of(0).limits());
  EXPECT_EQ(links.to_string(), "1gbit,5ms;0=unlimited;3=100mbit,40ms");
  for (const char* text :
       {"", ";", "1gbit;", "1gbit;3", "1gbit;=1gbit", "1gbit;-1=1gbit", "1gbit;x=1gbit",
        "1gbit;1=", "1gbit;1=1gbit;1=2gbit", "1gbit;1 =1gbit", "1gbit;2-1=1gbit", "1gbit;0-=1gbit",
        "1gbit;0-1=1gbit;1=1gbit", "1gbit;0|=1gbit", "1gbit;|1=1gbit", "1gbit;0-1|1-2=1gbit",
        "1gbit;0|1=1gbit;1|0=1gbit", "1gbit;0|1|2=1gbit", "1gbit;0-99999999=1gbit"}) {
    EXPECT_NE(thrown_text(ErrorCode::bad_input, [&] { (void)ClusterLinks::parse(text); }), "")
        << text;
  }
  const auto regions = ClusterLinks::parse("10gbit;0-1=1gbit;0-1|2-3=1gbit,30ms;0-1|4=2gbit");
  EXPECT_EQ(regions.to_string(), "10gbit;0=1gbit;1=1gbit;0-1|2-3=1gbit,30ms;0-1|4=2gbit");
  const auto outside = thrown_text(ErrorCode::bad_input, [] {
    (void)simulate(connect_threads(2), {.links = ClusterLinks::parse("1gbit;2=1mbit")});
  });
  EXPECT_NE(outside.find("rank 2, but the ranks are 0 to 1"), std::string::npos) << outside;
}

TEST(BusyTimes, LaterMessagesFillTheGapsBeforeEarlierOnes) {
  BusyTimes link;
  EXPECT_EQ(link.take(100ns, 10ns), 110ns);
  EXPECT_EQ(link.take(100ns, 10ns), 120ns);  // queued
  EXPECT_EQ(link.take(0ns, 30ns), 30ns);     // before them
  EXPECT_EQ(link.take(80ns, 30ns), 130ns);   // 20 before them, 10 after
  EXPECT_EQ(link.take(125ns, 5ns), 135ns);
  EXPECT_EQ(link.take(20ns, 0ns), 20ns);   // takes no time
  EXPECT_EQ(link.take(30ns, 50ns), 80ns);  // touches the spans at both ends
  EXPECT_EQ(link.take(0ns, 1ns), 136ns);   // all is busy from 0 to 135
}

TEST(Simulate, AMessageTakesItsBytesAndTheLatency) {
  run_cluster(2, "80mbit,5ms", [](SimulatedTransport& rank) {  // 10 bytes per microsecond
    if (rank.rank() == 0) {
      spent += 3ms;  // computes first
      send(rank, 1, 100'000);
      EXPECT_EQ(time_of(rank), 3ms);  // goes on at once
      send(rank, 1, 100'000);
      spent += 1ms;
      EXPECT_EQ(time_of(rank), 4ms);
    } else {
      receive(rank, 0, 100'000);
      EXPECT_EQ(time_of(rank), 3ms + 10ms + 5ms);
      spent += 2ms;  // while the second message is in flight
      receive(rank, 0, 100'000);
      EXPECT_EQ(time_of(rank), 3ms + 20ms + 5ms);
      spent += 2ms;
      EXPECT_EQ(time_of(rank), 30ms);
    }
  });
}

TEST(Simulate, ReceivesMayBeAwaitedInAnyOrder) {
  run_cluster(2, "80mbit", [](SimulatedTransport& rank) {
    std::vector<std::byte> first(100'000);
    std::vector<std::byte> second(50'000);
    if (rank.rank() == 0) {
      auto one = rank.send(1, Channel::data, first);
      auto two = rank.send(1, Channel::data, second);
      two->wait(Deadline::after(1s));
      one->wait(Deadline::after(1s));
    } else {
      auto one = rank.receive(0, Channel::data, first);
      auto two = rank.receive(0, Channel::data, second);
      two->wait(Deadline::after(1s));
      EXPECT_EQ(time_of(rank), 15ms);
      one->wait(Deadline::after(1s));
      EXPECT_EQ(time_of(rank), 15ms);
    }
  });
}

TEST(Simulate, SendersShareTheReceiversLink) {
  run_cluster(4, "80mbit,1ms", [](SimulatedTransport& rank) {
    if (rank.rank() != 0) return send(rank, 0, 100'000);
    for (int peer = 1; peer < 4; ++peer) receive(rank, peer, 100'000);
    EXPECT_EQ(time_of(rank), 3 * 10ms + 1ms);
  });
}

TEST(Simulate, BothDirectionsOfALinkAreIndependent) {
  run_cluster(2, "80mbit,1ms", [](SimulatedTransport& rank) {
    std::vector<std::byte> out(100'000);
    std::vector<std::byte> in(100'000);
    const int peer = 1 - rank.rank();
    auto sent = rank.send(peer, Channel::data, out);
    rank.receive(peer, Channel::data, in)->wait(Deadline::after(1s));
    sent->wait(Deadline::after(1s));
    EXPECT_EQ(time_of(rank), 11ms);
  });
}

TEST(Simulate, TheSlowerLinkAndTheLargerLatencyCount) {
  // Rank 2 has a tenth of the bandwidth and ten times the latency.
  run_cluster(3, "80mbit,1ms;2=8mbit,10ms", [](SimulatedTransport& rank) {
    const auto pass = [&](int from, int to, nanoseconds takes) {
      const nanoseconds before = time_of(rank);
      if (rank.rank() == from) send(rank, to, 10'000);
      if (rank.rank() == to) {
        receive(rank, from, 10'000);
        EXPECT_EQ(time_of(rank) - before, takes) << from << " to " << to;
      }
    };
    pass(0, 1, 2ms);
    pass(1, 2, 2ms + 20ms);  // rank 1 starts at 2 ms
    if (rank.rank() != 1) pass(2, 0, 22ms + 20ms);
  });
}

// Ranks 0 and 1 send to ranks 2 and 3 over a path that has half the bandwidth of a rank's link.
TEST(Simulate, MessagesBetweenRegionsShareTheirPath) {
  run_cluster(4, "80mbit,1ms;0-1|2-3=40mbit,20ms", [](SimulatedTransport& rank) {
    if (rank.rank() < 2) send(rank, rank.rank() + 2, 10'000);
    if (rank.rank() >= 2) receive(rank, rank.rank() - 2, 10'000);
    rank.align();  // one of the messages arrives after the other
    EXPECT_EQ(time_of(rank), 2 * 2ms + 20ms);
  });
  // Within a region the path does not count.
  run_cluster(3, "80mbit,1ms;0-1|2=40mbit,20ms", [](SimulatedTransport& rank) {
    if (rank.rank() == 0) send(rank, 1, 10'000);
    if (rank.rank() == 1) {
      receive(rank, 0, 10'000);
      EXPECT_EQ(time_of(rank), 2ms);
      send(rank, 2, 10'000);
      receive(rank, 2, 10'000);
      EXPECT_EQ(time_of(rank), 46ms);
    }
    if (rank.rank() == 2) {
      receive(rank, 1, 10'000);
      EXPECT_EQ(time_of(rank), 24ms);
      send(rank, 1, 10'000);
    }
  });
}

TEST(Simulate, AlignedRanksHaveTheLatestClock) {
  run_cluster(
      5, "80mbit,1ms",
      [](SimulatedTransport& rank) {
        for (int round = 1; round <= 3; ++round) {
          spent += rank.rank() * 1ms;
          rank.align();
          EXPECT_EQ(time_of(rank), round * 4ms);
        }
      },
      1);
  run_cluster(3, "80mbit", [](SimulatedTransport& rank) {
    if (rank.rank() == 1) return rank.abandon("the test wants it so");
    rank.align();  // does not wait for ever
    EXPECT_NE(thrown_text(ErrorCode::lost_peer, [&] { receive(rank, 1, 10); }), "");
  });
}

// A ring of N ranks: 2 (N - 1) messages one after another.
TEST(Simulate, ARingTakesItsLatencies) {
  for (const int world : {2, 3, 5, 8}) {
    run_cluster(world, "unlimited,1ms", [&](SimulatedTransport& rank) {
      std::vector<float> values(100'000, static_cast<float>(rank.rank()));
      Exchange exchange(rank, Seconds(1), {});
      sum_floats(exchange, values, 1.0F, {.by = SumBy::ring});
      EXPECT_EQ(time_of(rank), 2 * (world - 1) * 1ms);
      EXPECT_EQ(rank.longest_chain(), 2U * (static_cast<unsigned>(world) - 1));
      EXPECT_DOUBLE_EQ(exchange.stages.wire, 2e-3 * (world - 1));
      EXPECT_EQ(values[99], static_cast<float>(world * (world - 1)) / 2);
    });
  }
}

TEST(Simulate, SumsByOwnersTakeTwoLatenciesAndDirectOnesTakeOne) {
  for (const int world : {2, 3, 5, 8}) {
    for (const auto& [by, latencies] : {std::pair(SumBy::owner, 2), std::pair(SumBy::direct, 1)}) {
      run_cluster(world, "unlimited,1ms", [&](SimulatedTransport& rank) {
        std::vector<float> values(100'000, static_cast<float>(rank.rank()));
        Exchange exchange(rank, Seconds(1), {});
        sum_floats(exchange, values, 1.0F, {.by = by});
        EXPECT_EQ(time_of(rank), latencies * 1ms);
        EXPECT_EQ(rank.longest_chain(), static_cast<unsigned>(latencies));
      });
    }
  }
}

TEST(Simulate, AChainCountsFromItsBeginning) {
  run_cluster(3, "1gbit", [](SimulatedTransport& rank) {
    for (int round = 0; round < 2; ++round) {
      rank.begin_chain();
      const std::vector<std::byte> own(10);
      Exchange exchange(rank, Seconds(1), {});
      gather(exchange, own, 10, [](int, std::span<const std::byte>) {});
      EXPECT_EQ(rank.longest_chain(), 1U);
    }
  });
}

// Only one rank may compute at a time; all come to an end, and a failing rank ends the others.
TEST(Simulate, OneCoreServesAllRanks) {
  run_cluster(
      16, "1gbit,1ms",
      [](SimulatedTransport& rank) {
        std::vector<float> values(1000, 1.0F);
        for (int round = 0; round < 3; ++round) {
          Exchange exchange(rank, Seconds(1), {});
          sum_floats(exchange, values, 1.0F / 16);
        }
        EXPECT_EQ(values[0], 1.0F);
      },
      1);
  run_cluster(
      3, "1gbit",
      [](SimulatedTransport& rank) {
        if (rank.rank() == 1) return rank.abandon("the test wants it so");
        const auto text = thrown_text(ErrorCode::lost_peer, [&] { receive(rank, 1, 10); });
        EXPECT_NE(text.find("the test wants it so"), std::string::npos) << text;
      },
      1);
}

TEST(Simulate, TracksAreIndependent) {
  run_cluster(
      2, "1gbit,1ms", [](SimulatedTransport& rank) { use_tracks(rank); }, 1);
}

// Two tracks of each rank compute for 3 ms, exchange a message, and compute again: the latencies
// pass at the same time, the work takes one core, and the chain of messages is that of one track.
TEST(Simulate, TracksShareTheCoreAndNotTheLatency) {
  run_cluster(
      2, "unlimited,50ms",
      [](SimulatedTransport& rank) {
        std::vector<std::unique_ptr<Transport>> tracks;
        for (const int number : {1, 2}) tracks.push_back(rank.open_track(number));
        rank.begin_chain();
        const Moment begin = rank.hand_over();
        std::vector<Moment> ends(tracks.size());
        std::vector<std::thread> threads;
        for (std::size_t i = 0; i < tracks.size(); ++i) {
          threads.emplace_back([&, i] {
            tracks[i]->go_on_from(begin);
            spent += 3ms;
            const std::vector<std::byte> own(1);
            const auto sent = tracks[i]->send(1 - rank.rank(), Channel::data, own);
            receive(*tracks[i], 1 - rank.rank(), 1);
            spent += 3ms;
            sent->wait(Deadline::after(1s));
            ends[i] = tracks[i]->hand_over();
          });
        }
        for (auto& thread : threads) thread.join();
        for (const Moment& end : ends) {
          rank.go_on_from(end);
          EXPECT_EQ(end.chain, 1U);
        }
        // One track is done 3 ms after the other at least: they had to share the core.
        EXPECT_GE(time_of(rank), 50ms + 9ms);
        EXPECT_LE(time_of(rank), 50ms + 12ms);
        EXPECT_EQ(rank.longest_chain(), 1U);
      },
      1);
}

// Every look at the CPU time takes 1 ms here. The simulation looks at it when its own work begins
// and when it ends; only the time before the first of the two is the rank's.
TEST(Simulate, TheSimulationsOwnWorkIsNotCounted) {
  spent = 0ns;
  auto ranks = simulate(connect_threads(1), {.links = {}, .cpu_time = [] { return spent += 1ms; }});
  const auto start = ranks[0]->now();
  const nanoseconds before = spent;
  for (int i = 0; i < 9; ++i) (void)ranks[0]->now();
  EXPECT_EQ(ranks[0]->now() - start, 10ms);
  EXPECT_EQ(spent - before, 20ms);
}

TEST(Simulate, CpuTimeOfThreadsIsCounted) {
  auto ranks = simulate(connect_threads(1), {.links = {}});
  const auto start = ranks[0]->now();
  const auto cpu = thread_cpu_time();
  while (thread_cpu_time() - cpu < 5ms) {
  }
  const auto used = ranks[0]->now() - start;
  EXPECT_GE(used, 5ms);
  std::this_thread::sleep_for(20ms);
  EXPECT_LT(ranks[0]->now() - start, used + 20ms);
}

}  // namespace
}  // namespace thinreduce::simulate_test
