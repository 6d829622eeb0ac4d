// The laws of gather, broadcast and root, over worlds and sizes: the right result, the same bits on
// all ranks, and exactly the bytes that each header states.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "tests/collective_world.h"
#include "tests/links.h"
#include "tests/ranks.h"
#include "thinreduce/collective/broadcast.h"
#include "thinreduce/collective/checked.h"
#include "thinreduce/collective/gather.h"
#include "thinreduce/collective/root.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce::collective_test {
namespace {

using namespace testing_support;

class Collective : public CollectiveTest {};

INSTANTIATE_TEST_SUITE_P(All, Collective, testing::ValuesIn(cases()), case_name);

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
        work.write = [&](Range next) {
          EXPECT_EQ(next.begin, written);
          EXPECT_EQ(next.size(), std::min(work.batch, pieces - written));
          for (; written < next.end; ++written) {
            own[written] = payload(transport->rank(), written);
          }
        };
        work.piece = [&](std::size_t piece) -> std::span<const std::byte> { return own[piece]; };
        work.take = [&](Range next, std::span<const std::span<const std::byte>> all) {
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

TEST_P(Collective, BroadcastsOfAllRanksAtOnce) {
  run_ranks(world(), [&](std::unique_ptr<Transport> transport) {
    Exchange exchange(*transport, Seconds(30), kId);
    // The messages have different lengths, and some are empty.
    const auto length = [&](int rank) {
      return rank % 3 == 1 ? 0 : size() + static_cast<std::size_t>(rank);
    };
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::span<std::byte>> messages;
    std::uint64_t all = 0;
    for (int rank = 0; rank < world(); ++rank) {
      const bool own = rank == transport->rank();
      memory.emplace_back(length(rank), own ? std::byte(rank + 1) : std::byte{0});
      all += length(rank);
    }
    for (auto& one : memory) messages.emplace_back(one);
    broadcast_all(exchange, messages);
    for (int rank = 0; rank < world(); ++rank) {
      EXPECT_EQ(memory[static_cast<std::size_t>(rank)],
                std::vector<std::byte>(length(rank), std::byte(rank + 1)));
    }
    const std::size_t own = length(transport->rank());
    EXPECT_EQ(
        transport->total_traffic().bytes_sent,
        own == 0 ? 0 : static_cast<std::uint64_t>(world() - 1) * (own + kMessageChecksumBytes));
    EXPECT_EQ(exchange.payload_bytes, all);
  });
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

}  // namespace
}  // namespace thinreduce::collective_test
