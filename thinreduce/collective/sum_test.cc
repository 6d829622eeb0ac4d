// The laws of sums and maxima, over worlds and sizes: the right result, the same bits on all ranks,
// and exactly the bytes that each header states.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/collective_world.h"
#include "tests/links.h"
#include "tests/ranks.h"
#include "thinreduce/collective/checked.h"
#include "thinreduce/collective/float_sum.h"
#include "thinreduce/collective/owner_sum.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce::sum_test {
namespace {

using namespace testing_support;

class Sum : public CollectiveTest {};

INSTANTIATE_TEST_SUITE_P(All, Sum, testing::ValuesIn(cases()), case_name);

TEST_P(Sum, RingSumIsTheSumAndSendsTheStatedBytes) {
  Results results;
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    Exchange exchange(*transport, Seconds(30), kId);
    auto values = whole_numbers(size(), transport->rank());
    sum_floats(exchange, values, 1, ring_);
    EXPECT_EQ(exchange.payload_bytes, size() * sizeof(float));
    for (std::size_t i = 0; i < values.size(); ++i) {
      float expected = 0;
      for (int rank = 0; rank < world(); ++rank) expected += whole_numbers(size(), rank)[i];
      ASSERT_EQ(values[i], expected) << i;
      if (i == 20) break;  // the rest is compared below
    }
    EXPECT_EQ(transport->total_traffic().bytes_sent,
              ring_bytes_sent(transport->rank(), world(), size(), sizeof(float), for_floats()));
    results.add(values);
  });
  results.expect_same_bits(world());
  std::vector<float> expected(size());
  for (int rank = 0; rank < world(); ++rank) {
    const auto values = whole_numbers(size(), rank);
    std::transform(expected.begin(), expected.end(), values.begin(), expected.begin(),
                   std::plus<>());
  }
  EXPECT_EQ(results.first(), expected);
}

TEST_P(Sum, RingMeanHasTheSameBitsOnAllRanks) {
  Results results;
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    Exchange exchange(*transport, Seconds(30), kId);
    auto values = fractions(size(), transport->rank());
    sum_floats(exchange, values, 1.0F / static_cast<float>(world()), ring_);
    results.add(values);
  });
  results.expect_same_bits(world());
  for (std::size_t i = 0; i < size(); ++i) {
    double expected = 0;
    for (int rank = 0; rank < world(); ++rank) {
      expected +=
          (static_cast<double>((i * 37 + static_cast<std::size_t>(rank) * 101) % 1000) - 500) / 3 +
          0.1;
    }
    ASSERT_NEAR(results.first()[i], expected / world(), 2e-4) << i;
  }
}

// The link decides how a sum travels, so it must not decide about its bits.
TEST_P(Sum, SumsByOwnersAndDirectSumsHaveTheBitsOfTheRing) {
  const float share = 1.0F / static_cast<float>(world());
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    Exchange exchange(*transport, Seconds(30), kId);
    const int rank = transport->rank();
    auto by_ring = fractions(size(), rank);
    sum_floats(exchange, by_ring, share, ring_);
    for (const auto& options : {owner_, direct_}) {
      const auto before = transport->total_traffic().bytes_sent;
      exchange.payload_bytes = 0;
      auto values = fractions(size(), rank);
      sum_floats(exchange, values, share, options);
      EXPECT_EQ(values, by_ring);
      const auto sent = transport->total_traffic().bytes_sent - before;
      const auto peers = static_cast<std::uint64_t>(world() - 1);
      const std::uint64_t direct =
          size() == 0 ? 0 : peers * (size() * sizeof(float) + kMessageChecksumBytes);
      EXPECT_EQ(sent, options.by == SumBy::direct
                          ? direct
                          : owner_bytes_sent(rank, world(), size(), sizeof(float), owner_.owner));
      EXPECT_EQ(exchange.payload_bytes, size() * sizeof(float));
    }
  });
}

TEST_P(Sum, CheckedSumsGiveTheSameBitsAndFindTheFirstNonfinite) {
  const auto place = [&](std::size_t round, int rank) {
    return (round * (size() / 5 + 1) + static_cast<std::size_t>(rank)) % size();
  };
  for (const auto& options : {ring_, owner_, direct_}) {
    run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
      Exchange exchange(*transport, Seconds(30), kId);
      const float share = 1.0F / static_cast<float>(world());
      const int rank = transport->rank();
      auto plain = fractions(size(), rank);
      sum_floats(exchange, plain, share, options);
      auto checked = fractions(size(), rank);
      const Nonfinite clean = sum_floats_checked(exchange, checked, share, options);
      EXPECT_EQ(clean.own, size());
      EXPECT_FALSE(clean.in_result);
      EXPECT_EQ(plain, checked);
      if (size() == 0) return;
      // In the even rounds every rank has one, in the odd ones only rank 0.
      for (std::size_t round = 0; round < 6; ++round) {
        auto values = fractions(size(), rank);
        const bool bad = round % 2 == 0 || rank == 0;
        if (bad) values[place(round, rank)] = std::numeric_limits<float>::infinity();
        const Nonfinite found = sum_floats_checked(exchange, values, share, options);
        EXPECT_EQ(found.own, bad ? place(round, rank) : size()) << "round " << round;
        EXPECT_TRUE(found.in_result);
      }
    });
  }
}

TEST_P(Sum, MaxIsTheMaximum) {
  for (const auto& options : {ring_, owner_, direct_}) {
    run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
      Exchange exchange(*transport, Seconds(30), kId);
      auto values = whole_numbers(size(), transport->rank());
      max_floats(exchange, values, options);
      EXPECT_EQ(exchange.payload_bytes, size() * sizeof(float));
      std::vector<float> expected = whole_numbers(size(), 0);
      for (int rank = 1; rank < world(); ++rank) {
        const auto other = whole_numbers(size(), rank);
        for (std::size_t i = 0; i < size(); ++i) expected[i] = std::max(expected[i], other[i]);
      }
      EXPECT_EQ(values, expected);
    });
  }
}

// A payload whose wire form grows with the number of ranks in it, and that checks the promises of
// ring and owners: each range is encoded once and first, decoded once and last.
class CheckedSum final : public SumCodec {
 public:
  CheckedSum(std::vector<float> own, const Exchange& exchange)
      : result(own.size()),
        own_(std::move(own)),
        world_(exchange.size()),
        rank_(exchange.rank()),
        touched_(own_.size()) {
    for (int summed = 0; summed <= world_; ++summed) {
      wires_.emplace_back(own_.size() * bytes_at(summed));
    }
  }
  [[nodiscard]] std::size_t units() const override { return own_.size(); }
  [[nodiscard]] std::size_t unit_bytes() const override { return bytes_at(1); }
  [[nodiscard]] std::span<std::byte> wire(Range range, int summed) override {
    return std::span(wires_[static_cast<std::size_t>(summed)])
        .subspan(range.begin * bytes_at(summed), range.size() * bytes_at(summed));
  }
  void encode(Range range) override {
    for (std::size_t i = range.begin; i < range.end; ++i) {
      EXPECT_EQ(touched_[i]++, 0) << "encoded twice or late: " << i;
      store(i, 1, own_[i]);
    }
  }
  void add(Range range, int summed, std::span<const std::byte> incoming, int /*peer*/) override {
    for (std::size_t i = range.begin; i < range.end; ++i) {
      EXPECT_EQ(touched_[i], 1) << "added before it was encoded: " << i;
      const auto at = (i - range.begin) * bytes_at(summed);
      store(i, summed + 1, load_value<float>(incoming, at) + own_[i]);
    }
  }
  void add_part(Range range, int summed, std::span<const std::byte> part, int peer) override {
    EXPECT_NE(peer, rank_);
    for (std::size_t i = range.begin; i < range.end; ++i) {
      EXPECT_EQ(touched_[i], 1) << "added before it was encoded: " << i;
      const auto sum =
          load_value<float>(wires_[static_cast<std::size_t>(summed)], i * bytes_at(summed));
      store(i, summed + 1, sum + load_value<float>(part, (i - range.begin) * bytes_at(1)));
    }
  }
  void decode(Range range, int /*peer*/) override {
    for (std::size_t i = range.begin; i < range.end; ++i) {
      EXPECT_EQ(touched_[i]++, 1) << "decoded twice: " << i;
      result[i] = load_value<float>(wires_[static_cast<std::size_t>(world_)], i * bytes_at(world_));
    }
  }
  static std::size_t bytes_at(int summed) { return 4 + static_cast<std::size_t>(summed); }

  std::vector<float> result;

 private:
  void store(std::size_t i, int summed, float value) {
    store_value(std::span(wires_[static_cast<std::size_t>(summed)]), i * bytes_at(summed), value);
  }

  std::vector<float> own_;
  int world_;
  int rank_;
  std::vector<int> touched_;
  std::vector<std::vector<std::byte>> wires_;
};

TEST_P(Sum, RingAndOwnersKeepTheirPromisesToThePayload) {
  std::vector<float> expected(size());
  for (int rank = 0; rank < world(); ++rank) {
    const auto values = whole_numbers(size(), rank);
    for (std::size_t i = 0; i < size(); ++i) expected[i] += values[i];
  }
  const auto ranks = static_cast<std::size_t>(world());
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    Exchange exchange(*transport, Seconds(30), kId);
    CheckedSum by_ring(whole_numbers(size(), transport->rank()), exchange);
    all_reduce(exchange, by_ring, ring_);
    EXPECT_EQ(by_ring.result, expected);
    // Partial sums have 4 + N/2 bytes per unit on average, complete ones 4 + N.
    EXPECT_EQ(exchange.payload_bytes, world() == 1 ? 5 * size() : size() * (16 + 3 * ranks) / 4);

    exchange.payload_bytes = 0;
    CheckedSum by_owners(whole_numbers(size(), transport->rank()), exchange);
    all_reduce(exchange, by_owners, owner_);
    EXPECT_EQ(by_owners.result, expected);
    // Parts have 5 bytes per unit, answers 4 + N.
    EXPECT_EQ(exchange.payload_bytes, size() * (9 + ranks) / 2);
  });
}

// Other messages travel between the parts of a sum.
TEST_P(Sum, ASumInPartsIsTheSum) {
  std::vector<float> expected(size());
  for (int rank = 0; rank < world(); ++rank) {
    const auto values = whole_numbers(size(), rank);
    for (std::size_t i = 0; i < size(); ++i) expected[i] += values[i];
  }
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    Exchange exchange(*transport, Seconds(30), kId);
    CheckedSum other(whole_numbers(size(), transport->rank()), exchange);
    CheckedSum payload(whole_numbers(size(), transport->rank()), exchange);
    OwnerSumInParts sum(exchange, payload);
    sum.send_parts();
    all_reduce(exchange, other, owner_);
    sum.send_answers();
    auto third = whole_numbers(size(), transport->rank());
    sum_floats(exchange, third, 1);
    sum.take_answers();
    EXPECT_EQ(payload.result, expected);
    EXPECT_EQ(other.result, expected);
    EXPECT_EQ(third, expected);
  });
}

TEST(Ring, ALostRankEndsTheSumOnAllOthers) {
  expect_all_name_a_lost_rank([](Transport& transport) {
    Exchange exchange(transport, Seconds(30), kId);
    std::vector<float> values(100'000);
    sum_floats(exchange, values, 1);
  });
}

}  // namespace
}  // namespace thinreduce::sum_test
