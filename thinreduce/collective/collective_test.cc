// The laws of the collectives, over worlds and sizes: the right result, the same bits on all ranks,
// and exactly the bytes that each header states.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>

#include "tests/links.h"
#include "tests/ranks.h"
#include "thinreduce/collective/broadcast.h"
#include "thinreduce/collective/checked.h"
#include "thinreduce/collective/float_sum.h"
#include "thinreduce/collective/gather.h"
#include "thinreduce/collective/root.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

constexpr FrameId kId{.method = 9, .bucket = 1, .step = 2, .elements = 3, .layout_hash = 4};

// Small whole numbers: sums are exact, so the expected value does not depend on the order.
std::vector<float> whole_numbers(std::size_t size, int rank) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    values[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(rank) * 101) % 1000) - 500;
  }
  return values;
}

std::vector<float> fractions(std::size_t size, int rank) {
  auto values = whole_numbers(size, rank);
  for (auto& value : values) value = value / 3 + 0.1F;
  return values;
}

// The results of all ranks, compared at the end.
class Results {
 public:
  void add(const std::vector<float>& values) {
    const std::lock_guard lock(mutex_);
    all_.push_back(values);
  }
  void expect_same_bits(int world) const {
    ASSERT_EQ(all_.size(), static_cast<std::size_t>(world));
    for (const auto& values : all_) {
      ASSERT_EQ(values.size(), all_[0].size());
      if (values.empty()) continue;
      EXPECT_EQ(std::memcmp(values.data(), all_[0].data(), values.size() * sizeof(float)), 0);
    }
  }
  [[nodiscard]] const std::vector<float>& first() const { return all_.at(0); }

 private:
  std::mutex mutex_;
  std::vector<std::vector<float>> all_;
};

struct Case {
  int world;
  std::size_t size;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int world : {1, 2, 3, 4, 7, 8}) {
    for (const std::size_t size : {0, 1, 2, 5, 13, 64, 1009, 20011}) all.push_back({world, size});
  }
  return all;
}

class Collective : public testing::TestWithParam<Case> {
 protected:
  [[nodiscard]] int world() const { return GetParam().world; }
  [[nodiscard]] std::size_t size() const { return GetParam().size; }
  // With 100-byte segments, the large sizes have hundreds of segments per chunk.
  // Returns the options that a ring of floats uses: a chunk of many segments has half as many.
  [[nodiscard]] RingOptions for_floats() const {
    RingOptions options = ring_.ring;
    const std::size_t chunk = size() * sizeof(float) / static_cast<std::size_t>(world());
    if (chunk >= 16 * options.segment_bytes) options.segment_bytes *= 2;
    return options;
  }

  const SumOptions ring_{.by = SumBy::ring, .ring = {.segment_bytes = 100}};
  const SumOptions owner_{.by = SumBy::owner, .owner = {.piece_bytes = 100, .ahead = 2}};
  const SumOptions direct_{.by = SumBy::direct};
};

INSTANTIATE_TEST_SUITE_P(All, Collective, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return std::to_string(test.param.world) + "ranks_" +
                                  std::to_string(test.param.size);
                         });

TEST_P(Collective, RingSumIsTheSumAndSendsTheStatedBytes) {
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

TEST_P(Collective, RingMeanHasTheSameBitsOnAllRanks) {
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
TEST_P(Collective, SumsByOwnersAndDirectSumsHaveTheBitsOfTheRing) {
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

TEST_P(Collective, CheckedSumsGiveTheSameBitsAndFindTheFirstNonfinite) {
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

TEST_P(Collective, MaxIsTheMaximum) {
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
class CheckedSum final : public SumPayload {
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
  [[nodiscard]] std::span<std::byte> wire(UnitRange range, int summed) override {
    return std::span(wires_[static_cast<std::size_t>(summed)])
        .subspan(range.begin * bytes_at(summed), range.size() * bytes_at(summed));
  }
  void encode(UnitRange range) override {
    for (std::size_t i = range.begin; i < range.end; ++i) {
      EXPECT_EQ(touched_[i]++, 0) << "encoded twice or late: " << i;
      store(i, 1, own_[i]);
    }
  }
  void add(UnitRange range, int summed, std::span<const std::byte> incoming,
           int /*peer*/) override {
    for (std::size_t i = range.begin; i < range.end; ++i) {
      EXPECT_EQ(touched_[i], 1) << "added before it was encoded: " << i;
      const auto at = (i - range.begin) * bytes_at(summed);
      store(i, summed + 1, load_value<float>(incoming, at) + own_[i]);
    }
  }
  void add_part(UnitRange range, int summed, std::span<const std::byte> part, int peer) override {
    EXPECT_NE(peer, rank_);
    for (std::size_t i = range.begin; i < range.end; ++i) {
      EXPECT_EQ(touched_[i], 1) << "added before it was encoded: " << i;
      const auto sum =
          load_value<float>(wires_[static_cast<std::size_t>(summed)], i * bytes_at(summed));
      store(i, summed + 1, sum + load_value<float>(part, (i - range.begin) * bytes_at(1)));
    }
  }
  void decode(UnitRange range, int /*peer*/) override {
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

TEST_P(Collective, RingAndOwnersKeepTheirPromisesToThePayload) {
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
TEST_P(Collective, ASumInPartsIsTheSum) {
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

TEST_P(Collective, GatherDeliversUnequalPayloadsInRankOrder) {
  // Every third rank sends nothing.
  const auto bytes = [&](int rank) {
    return rank % 3 == 2 ? 0 : size() + 10 * static_cast<std::size_t>(rank);
  };
  const auto payload = [&](int rank) {
    return std::vector<std::byte>(bytes(rank), static_cast<std::byte>(rank + 1));
  };
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    Exchange exchange(*transport, Seconds(30), kId);
    int next = 0;
    gather(exchange, payload(transport->rank()), size() + 100,
           [&](int rank, std::span<const std::byte> got) {
             EXPECT_EQ(rank, next++);
             const auto expected = payload(rank);
             EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin(), expected.end()));
           });
    EXPECT_EQ(next, world());
    EXPECT_EQ(
        transport->total_traffic().bytes_sent,
        static_cast<std::uint64_t>(world() - 1) * (kFrameHeaderBytes + bytes(transport->rank())));
  });
}

// The bytes of a piece tell its rank and its number; some ranks send nothing in some pieces. The
// second gather reuses the buffers of the first.
TEST_P(Collective, PiecesComeInOrderFromAllRanks) {
  const auto payload = [&](int rank, std::size_t piece) {
    const std::size_t bytes =
        (static_cast<std::size_t>(rank) + piece) % 3 == 2 ? 0 : size() / 4 + 10 * piece;
    return std::vector<std::byte>(bytes, static_cast<std::byte>(16 * rank + piece + 1));
  };
  for (const std::size_t pieces : {0u, 1u, 2u, 3u, 9u}) {
    run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
      SpareBuffers spare;
      std::uint64_t expected_bytes = 0;
      for (int round = 0; round < 2; ++round) {
        Exchange exchange(*transport, Seconds(30), kId);
        std::size_t written = 0;
        std::size_t taken = 0;
        PieceWork work;
        work.pieces = pieces;
        work.limit = size() + 100;
        // Each rank as it likes.
        work.batch = 1 + static_cast<std::size_t>(transport->rank() + round) % 4;
        std::vector<std::vector<std::byte>> own(pieces);
        work.write = [&](UnitRange next) {
          EXPECT_EQ(next.begin, written);
          EXPECT_EQ(next.size(), std::min(work.batch, pieces - written));
          for (; written < next.end; ++written) {
            own[written] = payload(transport->rank(), written);
          }
        };
        work.piece = [&](std::size_t piece) -> std::span<const std::byte> { return own[piece]; };
        work.take = [&](UnitRange next, std::span<const std::span<const std::byte>> all) {
          EXPECT_EQ(next.begin, taken);
          EXPECT_EQ(next.size(), std::min(work.batch, pieces - taken));
          const auto ranks = static_cast<std::size_t>(world());
          ASSERT_EQ(all.size(), next.size() * ranks);
          for (std::size_t i = 0; i < all.size(); ++i) {
            const auto expected = payload(static_cast<int>(i % ranks), next.begin + i / ranks);
            EXPECT_TRUE(std::ranges::equal(all[i], expected));
          }
          taken = next.end;
        };
        exchange.spare = &spare;
        gather_pieces(exchange, work);
        EXPECT_EQ(taken, pieces);
        // No more buffers than pieces in flight, however many gathers share them.
        EXPECT_LE(spare.size(), 12 * static_cast<std::size_t>(world() - 1));
        std::uint64_t bytes = 0;
        for (std::size_t piece = 0; piece < pieces; ++piece) {
          bytes += kFrameHeaderBytes + payload(transport->rank(), piece).size();
        }
        EXPECT_EQ(exchange.payload_bytes, bytes);
        expected_bytes += static_cast<std::uint64_t>(world() - 1) * bytes;
        EXPECT_EQ(transport->total_traffic().bytes_sent, expected_bytes);
      }
    });
  }
}

TEST_P(Collective, BroadcastFromEveryRoot) {
  for (int root = 0; root < world(); ++root) {
    run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
      Exchange exchange(*transport, Seconds(30), kId);
      std::vector<std::byte> message(size());
      if (transport->rank() == root) std::fill(message.begin(), message.end(), std::byte{77});
      broadcast(exchange, root, message, {.segment_bytes = 100, .by = BroadcastBy::chain});
      EXPECT_EQ(message, std::vector<std::byte>(size(), std::byte{77}));
      const bool last = (transport->rank() + 1) % world() == root;
      const std::size_t segments = (size() + 99) / 100;
      EXPECT_EQ(transport->total_traffic().bytes_sent,
                last ? 0 : size() + segments * kMessageChecksumBytes);
      EXPECT_EQ(exchange.payload_bytes, size());
    });
  }
}

TEST_P(Collective, DirectAndRelayedBroadcastsFromEveryRoot) {
  const auto peers = static_cast<std::size_t>(world() - 1);
  for (int root = 0; root < world(); ++root) {
    run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
      Exchange exchange(*transport, Seconds(30), kId);
      const bool is_root = transport->rank() == root;
      for (const BroadcastBy by : {BroadcastBy::direct, BroadcastBy::relays}) {
        std::vector<std::byte> message(size());
        for (std::size_t i = 0; is_root && i < size(); ++i) message[i] = std::byte(i * 7);
        const auto before = transport->total_traffic().bytes_sent;
        broadcast(exchange, root, message, {.by = by});
        for (std::size_t i = 0; i < size(); ++i) ASSERT_EQ(message[i], std::byte(i * 7));
        const auto sent = transport->total_traffic().bytes_sent - before;
        if (world() == 1 || size() == 0) {
          EXPECT_EQ(sent, 0);
        } else if (by == BroadcastBy::direct) {
          EXPECT_EQ(sent, is_root ? peers * (size() + kMessageChecksumBytes) : 0);
        } else if (is_root) {
          EXPECT_EQ(sent, size() + std::min(peers, size()) * kMessageChecksumBytes);
        } else {
          EXPECT_LE(sent, (peers - 1) * (size() / peers + 1 + kMessageChecksumBytes));
        }
      }
    });
  }
}

TEST_P(Collective, ThroughRootAndBack) {
  for (const int root : {0, world() - 1}) {
    run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
      Exchange exchange(*transport, Seconds(30), kId);
      exchange.link = kRingLink;  // broadcasts go along a chain
      const std::vector<std::byte> own(size(), static_cast<std::byte>(transport->rank()));
      const auto reply =
          through_root(exchange, root, own, size() * static_cast<std::size_t>(world()),
                       [&](const std::vector<std::span<const std::byte>>& payloads) {
                         std::vector<std::byte> all;
                         for (const auto& one : payloads)
                           all.insert(all.end(), one.begin(), one.end());
                         return all;
                       });
      ASSERT_EQ(reply.size(), size() * static_cast<std::size_t>(world()));
      for (std::size_t i = 0; i < reply.size(); ++i) {
        ASSERT_EQ(reply[i], static_cast<std::byte>(i / size()));
      }
      EXPECT_EQ(exchange.payload_bytes, kFrameHeaderBytes + size());
      if (world() == 1) return;
      const bool last = (transport->rank() + 1) % world() == root;
      const std::uint64_t up = transport->rank() == root ? 0 : kFrameHeaderBytes + size();
      const std::uint64_t messages = reply.empty() ? 1 : 2;
      const std::uint64_t down =
          last ? 0 : kFrameHeaderBytes + reply.size() + messages * kMessageChecksumBytes;
      EXPECT_EQ(transport->total_traffic().bytes_sent, up + down);
    });
  }
}

TEST(Gather, RefusesWhatDoesNotBelongHere) {
  // Rank 1 is one step ahead; the error on rank 0 names both steps.
  auto thrown = try_ranks(2, [](std::unique_ptr<Transport> transport) {
    FrameId id = kId;
    id.step += static_cast<std::uint64_t>(transport->rank());
    Exchange exchange(*transport, Seconds(5), id);
    gather(exchange, {}, 10, [](int, std::span<const std::byte>) {});
  });
  const auto text = error_text(thrown[0], ErrorCode::mismatch);
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("step 3, expected 2"), std::string::npos) << text;
  // A payload above the limit is refused before memory is allocated.
  thrown = try_ranks(2, [](std::unique_ptr<Transport> transport) {
    Exchange exchange(*transport, Seconds(5), kId);
    const std::vector<std::byte> big(1000);
    gather(exchange, big, transport->rank() == 0 ? 999 : 1000,
           [](int, std::span<const std::byte>) {});
  });
  EXPECT_NE(error_text(thrown[0], ErrorCode::bad_frame).find("1000 bytes"), std::string::npos);
}

TEST(Ring, ALostRankEndsTheSumOnAllOthers) {
  const auto thrown = try_ranks(4, [](std::unique_ptr<Transport> transport) {
    Exchange exchange(*transport, Seconds(30), kId);
    std::vector<float> values(100'000);
    try {
      if (transport->rank() == 2) throw Error(ErrorCode::bad_input, "rank 2 fails on purpose");
      sum_floats(exchange, values, 1);
    } catch (const Error& error) {
      transport->abandon(error.what());
      throw;
    }
  });
  for (const int rank : {0, 1, 3}) {
    const auto text = error_text(thrown[static_cast<std::size_t>(rank)], ErrorCode::lost_peer);
    EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace thinreduce
