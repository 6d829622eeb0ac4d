#include "thinreduce/engine/handover.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "tests/ranks.h"

namespace thinreduce::handover_test {
namespace {

TEST(Handover, MessagesOfSeveralPiecesArrive) {
  constexpr std::size_t kSizes[] = {0, 1, 40'000'000};
  run_ranks(3, [&](std::unique_ptr<Transport> transport) {
    Exchange exchange(*transport, Seconds(60), {});
    const auto rank = static_cast<std::size_t>(transport->rank());
    const auto message = [&](std::size_t from, std::size_t to) {
      return std::vector<std::byte>(kSizes[(from + 2 * to) % 3],
                                    static_cast<std::byte>(from * 3 + to));
    };
    std::vector<std::vector<std::byte>> outgoing;
    for (std::size_t to = 0; to < 3; ++to) {
      outgoing.push_back(to == rank ? std::vector<std::byte>() : message(rank, to));
    }
    const auto incoming = exchange_messages(exchange, outgoing);
    for (std::size_t from = 0; from < 3; ++from) {
      const auto expected = from == rank ? std::vector<std::byte>() : message(from, rank);
      EXPECT_TRUE(incoming[from] == expected) << from << " to " << rank;
    }
  });
}

}  // namespace
}  // namespace thinreduce::handover_test
