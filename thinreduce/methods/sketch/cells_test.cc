#include "thinreduce/methods/sketch/cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/ranks.h"
#include "tests/test_world.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce::cells_test {
namespace {

// Cells of ranks that differ by orders of magnitude: the error of the sum is that of halves.
TEST(HalfCells, AddUpWithinTheErrorOfHalfs) {
  for (const int world : kWorlds) {
    for (const std::size_t cells : {1u, 5u, 1009u}) {
      auto gradients = normal_gradients(world, cells, 3);
      for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
        for (auto& value : gradients[rank]) value = std::ldexp(value, -7 * static_cast<int>(rank));
      }
      const auto exact = exact_sum(gradients);
      run_ranks(world, [&](std::unique_ptr<Transport> transport) {
        Exchange exchange(*transport, Seconds(20), {});
        auto values = gradients[static_cast<std::size_t>(transport->rank())];
        HalfCells sum(values);
        owner_reduce(exchange, sum);
        // A half has 11 bits, denormal ones 24 bits below the largest.
        for (std::size_t i = 0; i < cells; ++i) ASSERT_NEAR(values[i], exact[i], world * 0x1p-9);
      });
    }
  }
}

TEST(HalfCells, RefuseWhatNoRankSends) {
  std::vector<float> values{1, -2, 3, 0.5f};
  HalfCells cells(values);
  const Range all{0, values.size()};
  std::vector<std::byte> good;
  cells.encode_part(all, good);
  cells.begin_sum(all);
  cells.add_part(all, 1, good);
  const auto expect = [&](const std::vector<std::byte>& bytes, const char* why) {
    const auto text = thrown_text(ErrorCode::bad_frame, [&] { cells.add_part(all, 1, bytes); });
    EXPECT_THAT(text, testing::HasSubstr("rank 1 sent invalid cells"));
    EXPECT_THAT(text, testing::HasSubstr(why));
  };
  expect({good.begin(), good.end() - 1}, "11 bytes for 4 cells, which must have 12");
  expect({}, "0 bytes");
  for (const float scale : {0.0f, -1.0f, 3.0f, std::nanf(""), INFINITY, 0x1p-127f, 0x1p127f}) {
    auto bytes = good;
    store_value(std::span(bytes), 0, scale);
    expect(bytes, "must be a power of two");
  }
  auto bytes = good;
  store_value<std::uint16_t>(std::span(bytes), 6, 0x7c00);
  expect(bytes, "cell 1 is inf");
}

}  // namespace
}  // namespace thinreduce::cells_test
