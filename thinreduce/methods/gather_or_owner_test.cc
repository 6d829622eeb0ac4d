// The choices of collective=auto.
#include "thinreduce/methods/gather_or_owner.h"

#include <gtest/gtest.h>

#include <tuple>

#include "tests/test_world.h"

namespace thinreduce::gather_or_owner_test {
namespace {

bool chooses_owners(const std::string& collective, int world, double payload_bytes) {
  Options options;
  options.values["collective"] = collective;
  MethodSetup setup;
  setup.world = world;
  return by_owners(options, setup, {.payload_bytes = payload_bytes, .owner_payloads = 3});
}

TEST(GatherOrOwner, FewRanksGather) {
  for (int world = 1; world <= kMaxRanksToGather; ++world) {
    EXPECT_FALSE(chooses_owners("auto", world, 1e12)) << world;
  }
}

// Once owners pay, they pay for larger payloads and for more ranks.
TEST(GatherOrOwner, LargePayloadsAndManyRanksUseOwners) {
  for (const int world : {5, 8, 16, 64, 256, 1024}) {
    EXPECT_FALSE(chooses_owners("auto", world, 10)) << world;
    EXPECT_TRUE(chooses_owners("auto", world, 100'000)) << world;
    bool before = false;
    for (double bytes = 1; bytes < 1e9; bytes *= 2) {
      const bool chosen = chooses_owners("auto", world, bytes);
      EXPECT_TRUE(chosen || !before) << world << " ranks, " << bytes << " bytes";
      EXPECT_TRUE(!chosen || chooses_owners("auto", 2 * world, bytes));
      before = chosen;
    }
  }
}

TEST(GatherOrOwner, AChoiceInTheSpecWins) {
  EXPECT_TRUE(chooses_owners("owner", 2, 1));
  EXPECT_FALSE(chooses_owners("gather", 1000, 1e12));
}

// Sparse payloads are reduced by owners from 4 ranks on, if they are large.
TEST(GatherOrOwner, FourRanksUseOwnersForLargeSparseBuckets) {
  for (const std::string method : {"topk", "fft"}) {
    for (const auto& [world, elements, owner] :
         {std::tuple(4, 300'000u, 1), {4, 5'000u, 0}, {3, 300'000u, 0}}) {
      TestWorld ranks(world, method, elements);
      (void)ranks.mean(normal_gradients(world, elements, 1));
      EXPECT_EQ(ranks.statistics[0].at("owner"), owner) << method << world << " " << elements;
    }
  }
}

// So that a rank neither decodes N payloads nor replays N dithers.
TEST(GatherOrOwner, ManyRanksUseOwnersForLargeBucketsOfCodes) {
  constexpr int kWorld = 8;
  constexpr std::size_t kElements = 300'000;
  for (const std::string method : {"dqsg", "qsgd", "terngrad"}) {
    TestWorld ranks(kWorld, method, kElements);
    (void)ranks.mean(normal_gradients(kWorld, kElements, 1));
    EXPECT_EQ(ranks.statistics[0].at("owner"), 1) << method;
  }
}

// Never more than a gather sends, in buckets of any size.
TEST(GatherOrOwner, AutoDoesNotSendMoreThanAGather) {
  for (const std::string method : {"topk", "fft", "qsgd", "terngrad", "dqsg", "ndqsg"}) {
    for (const std::size_t elements : {600u, 5'000u, 60'000u}) {
      const auto sent = [&](const std::string& spec) {
        TestWorld ranks(8, spec, elements);
        (void)ranks.mean(normal_gradients(8, elements, 1));
        return ranks.transport(1).total_traffic().bytes_sent;
      };
      EXPECT_LE(sent(method), sent(method + ":collective=gather")) << method << " " << elements;
    }
  }
}

}  // namespace
}  // namespace thinreduce::gather_or_owner_test
