// The longest chain of messages in a step of every method, counted in a virtual cluster.
//
// Specs come from methods(), so a new method is under these laws by being registered.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/law_specs.h"
#include "tests/session_world.h"
#include "thinreduce/engine/flights.h"
#include "thinreduce/engine/probe.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/method/registry.h"
#include "thinreduce/transport/simulate.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce::latencies_test {
namespace {

constexpr const char* kLink = "1gbit,5ms";

std::vector<std::shared_ptr<SimulatedTransport>> cluster(int world, const char* link = kLink) {
  std::vector<std::shared_ptr<SimulatedTransport>> ranks;
  // A core per rank: they also wait for each other at barriers.
  ClusterOptions options{.links = ClusterLinks::parse(link), .cores = world};
  for (auto& rank : simulate(connect_threads(world), options)) ranks.push_back(std::move(rank));
  return ranks;
}

// The buckets that are submitted at once.
struct Step {
  std::uint32_t buckets = 1;
  BucketLayout layout = mixed_layout(0);
  const char* link = kLink;
};

// Returns the longest chain of messages in the first compressed step.
std::uint64_t longest_chain(const std::string& spec, int world, const Step& submitted = {}) {
  const auto ranks = cluster(world, submitted.link);
  const std::uint32_t buckets = submitted.buckets;
  std::vector<std::uint64_t> chains(ranks.size());
  std::barrier together(world);
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      Session session(ranks[rank], {.spec = spec, .momentum_inside_ok = true});
      std::vector<BucketHandle> handles;
      for (std::uint32_t id = 0; id < buckets; ++id) {
        BucketLayout layout = submitted.layout;
        layout.id = id;
        handles.push_back(session.add_bucket(std::move(layout)));
      }
      const std::uint64_t last = steps_of(spec, 0);
      for (std::uint64_t step = 0; step <= last; ++step) {
        together.arrive_and_wait();
        ranks[rank]->begin_chain();
        together.arrive_and_wait();
        std::vector<std::vector<float>> values(
            buckets, gradient(submitted.layout.elements, static_cast<int>(rank), step));
        std::vector<std::future<Report>> done;
        for (std::uint32_t id = 0; id < buckets; ++id) {
          done.push_back(session.submit(handles[id], values[id]));
        }
        for (auto& one : done) one.get();
      }
      chains[rank] = ranks[rank]->longest_chain();
    });
  }
  threads.clear();
  return *std::max_element(chains.begin(), chains.end());
}

// The messages of a method one after another, without the agreement before the bucket.
std::uint64_t max_latencies(const std::string& spec) {
  if (spec.starts_with("powersgd")) return 4;   // two sums, one after the other
  if (spec.starts_with("sketch")) return 5;     // nominees, then two sums
  if (spec.starts_with("gradiveq+")) return 5;  // scales, codes, and what is not quantized
  if (spec.starts_with("gradiveq")) return 3;
  if (spec.starts_with("dqsg")) return 3;  // with at most 4 ranks: scales, then codes
  return 2;                                // a sum or parts and answers by owners, or a gather
}

class Latencies : public testing::TestWithParam<std::string> {};

TEST_P(Latencies, DoNotGrowWithTheRanks) {
  for (const int world : {2, 5, 12}) {
    EXPECT_LE(longest_chain(GetParam(), world), 1 + max_latencies(GetParam())) << world;
  }
}

// Nor with the bytes: where they take longer than a latency, no way of fewer bytes and more
// latencies is chosen.
TEST(SketchLatencies, DoNotGrowWithTheBytes) {
  const BucketLayout large{.id = 0, .elements = 200003, .tensors = {}};
  EXPECT_LE(longest_chain("sketch", 12, {.layout = large, .link = "100mbit,5ms"}), 1 + 5);
}

// Buckets that are submitted together do not wait for one another.
TEST_P(Latencies, OfSeveralBucketsDoNotAddUp) {
  const std::uint64_t alone = longest_chain(GetParam(), 4);
  EXPECT_EQ(longest_chain(GetParam(), 4, {.buckets = Flights::kTracks}), alone);
  // Those that wait for a track begin when its first bucket is done.
  EXPECT_LE(longest_chain(GetParam(), 4, {.buckets = 2 * Flights::kTracks}), 2 * alone);
}

INSTANTIATE_TEST_SUITE_P(Laws, Latencies, testing::ValuesIn(default_specs()),
                         [](const auto& test) { return test_name(test.param); });

// All ranks have the same estimate, near the link that is simulated.
TEST(Probe, FindsTheLink) {
  for (const int world : {2, 5}) {
    const auto ranks = cluster(world);
    std::vector<Link> found(ranks.size());
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      threads.emplace_back(
          [&, rank] { found[rank] = agree_on_link(*ranks[rank], Seconds(20), std::nullopt); });
    }
    threads.clear();
    for (const Link& link : found) {
      EXPECT_EQ(link.latency, found[0].latency);
      EXPECT_EQ(link.bytes_per_second, found[0].bytes_per_second);
      EXPECT_GE(link.latency.count(), 5e-3);
      EXPECT_GT(link.bytes_per_second, 0);
      EXPECT_LE(link.bytes_per_second, 126e6);
    }
  }
}

// Links that are given are not measured, and the slowest counts for all.
TEST(Probe, TheSlowestGivenLinkCounts) {
  auto ranks = connect_threads(3);
  std::vector<Link> found(3);
  std::vector<std::uint64_t> messages(3);
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const Link given{.bytes_per_second = rank == 1 ? 1e6 : 1e8,
                       .latency = Seconds{rank == 2 ? 0.04 : 0.001}};
      found[rank] = agree_on_link(*ranks[rank], Seconds(20), given);
      messages[rank] = ranks[rank]->total_traffic().messages_sent;
    });
  }
  threads.clear();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(found[rank].bytes_per_second, 1e6);
    EXPECT_EQ(found[rank].latency, Seconds{0.04});
    EXPECT_EQ(messages[rank], 4);
  }
}

}  // namespace
}  // namespace thinreduce::latencies_test
