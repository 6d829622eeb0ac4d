// The laws of owner reduction, over worlds, sizes and numbers of pieces: the sum in rank order, the
// same bits on all ranks, exactly the bytes that owner.h states, and one error for a bad peer.
#include "thinreduce/collective/owner.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <mutex>

#include "tests/ranks.h"
#include "thinreduce/collective/framed.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce::owner_test {
namespace {

constexpr FrameId kId{.method = 9, .bucket = 1, .step = 2, .elements = 3, .layout_hash = 4};
constexpr std::size_t kUnit = 3;  // floats per unit; the last unit may have fewer

float value_of(int rank, std::size_t i) {
  return static_cast<float>((i * 37 + static_cast<std::size_t>(rank) * 101) % 1000) / 3 - 166.4F;
}

// Sums of floats. The parts and answers of some ranges have a few more bytes, so that lengths
// differ. Also checks the order of the calls.
class FloatOwner final : public OwnerCodec {
 public:
  // With `fixed`, receivers rely on the lengths.
  FloatOwner(int rank, int world, std::size_t elements, bool fixed = false)
      : values(elements), decoded(elements), rank_(rank), world_(world), fixed_(fixed) {
    for (std::size_t i = 0; i < elements; ++i) values[i] = value_of(rank, i);
  }

  [[nodiscard]] std::size_t units() const override { return (values.size() + kUnit - 1) / kUnit; }
  [[nodiscard]] std::size_t unit_elements() const override { return kUnit; }
  [[nodiscard]] std::size_t max_part_bytes(Range range) const override {
    return floats(range).size_bytes() + filler(range);
  }
  [[nodiscard]] std::size_t max_answer_bytes(Range range) const override {
    return max_part_bytes(range);
  }
  [[nodiscard]] bool fixed_lengths() const override { return fixed_; }
  void encode_part(Range range, std::vector<std::byte>& out) override {
    append(floats(range), range, out);
    sent += kFrameHeaderBytes + kOwnerPrefixBytes + max_part_bytes(range);
  }
  void begin_sum(Range range) override {
    EXPECT_EQ(added_, 0) << "one sum at a time";
    added_ = 1;
    const auto own = floats(range);
    sum_.assign(own.begin(), own.end());
  }
  void add_part(Range range, int rank, std::span<const std::byte> bytes) override {
    if (bytes.size() != max_part_bytes(range)) {
      throw Error(ErrorCode::bad_frame, "a part of rank " + std::to_string(rank) + " has " +
                                            std::to_string(bytes.size()) + " bytes");
    }
    std::vector<float> theirs(floats(range).size());
    std::memcpy(theirs.data(), bytes.data(), theirs.size() * sizeof(float));
    add(rank, theirs);
  }
  void encode_answer(Range range, std::vector<std::byte>& out) override {
    EXPECT_EQ(added_, world_) << "all ranks must be in the sum";
    added_ = 0;
    append(sum_, range, out);
    sent += static_cast<std::size_t>(world_ - 1) *
            (kFrameHeaderBytes + kOwnerPrefixBytes + max_part_bytes(range));
  }
  void decode_answer(Range range, int owner, std::span<const std::byte> answer) override {
    EXPECT_EQ(owner == rank_, !sum_.empty()) << "an owner decodes directly after encoding";
    sum_.clear();
    const auto into = part(std::span(decoded), elements(range));
    ASSERT_EQ(answer.size(), max_answer_bytes(range));
    for (const float value : into) EXPECT_EQ(value, 0) << "decoded twice";
    std::memcpy(into.data(), answer.data(), into.size_bytes());
  }

  std::vector<float> values;
  std::vector<float> decoded;
  std::uint64_t sent = 0;  // by the formula of owner.h

 private:
  [[nodiscard]] Range elements(Range range) const {
    return {range.begin * kUnit, std::min(range.end * kUnit, values.size())};
  }
  [[nodiscard]] std::span<const float> floats(Range range) const {
    return part(std::span<const float>(values), elements(range));
  }
  static std::size_t filler(Range range) { return range.begin % 3; }
  static void append(std::span<const float> floats, Range range, std::vector<std::byte>& out) {
    const auto bytes = std::as_bytes(floats);
    out.insert(out.end(), bytes.begin(), bytes.end());
    out.resize(out.size() + filler(range));
  }
  void add(int rank, std::span<const float> in) {
    EXPECT_EQ((rank + added_++) % world_, rank_) << "parts must come in the order of arrival";
    ASSERT_EQ(sum_.size(), in.size());
    for (std::size_t i = 0; i < in.size(); ++i) sum_[i] += in[i];
  }

  int rank_;
  int world_;
  bool fixed_;
  int added_ = 0;  // ranks in the sum
  std::vector<float> sum_;
};

struct Case {
  int world;
  std::size_t size;
};

class Owner : public testing::TestWithParam<Case> {};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int world : {1, 2, 3, 5, 8}) {
    for (const std::size_t size : {0, 1, 2, 5, 13, 64, 1009, 4003}) all.push_back({world, size});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Owner, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return std::to_string(test.param.world) + "ranks_" +
                                  std::to_string(test.param.size);
                         });

// Returns the sum over all ranks, added from each owner leftwards.
std::vector<float> sum_of(int world, std::size_t size) {
  const auto ranks = static_cast<std::size_t>(world);
  std::vector<float> sums(size);
  for (std::size_t owner = 0; owner < ranks; ++owner) {
    const Range range = cut({0, (size + kUnit - 1) / kUnit}, ranks, owner);
    for (std::size_t i = range.begin * kUnit; i < std::min(size, range.end * kUnit); ++i) {
      for (std::size_t distance = ranks; distance > 0; --distance) {
        sums[i] += value_of(static_cast<int>((owner + distance) % ranks), i);
      }
    }
  }
  return sums;
}

// Floats are added one by one in a known order, so that the expected bits are known.
TEST_P(Owner, IsTheSumInTheStatedOrderAndSendsTheStatedBytes) {
  const auto [world, size] = GetParam();
  const std::vector<float> expected = sum_of(world, size);
  for (const OwnerOptions options : {OwnerOptions{}, OwnerOptions{.piece_elements = 60, .ahead = 1},
                                     OwnerOptions{.piece_elements = 30, .ahead = 4},
                                     OwnerOptions{.piece_elements = 200, .ahead = 100}}) {
    run_ranks(world, [&, world = world, size = size](std::unique_ptr<Transport> transport) {
      SpareBuffers spare;
      std::uint64_t sent = 0;
      for (const bool fixed : {false, true}) {
        Exchange exchange(*transport, Seconds(30), kId);
        exchange.spare = &spare;
        FloatOwner payload(transport->rank(), world, size, fixed);
        owner_reduce(exchange, payload, options);
        EXPECT_EQ(payload.decoded, expected);
        sent += payload.sent;
        EXPECT_EQ(transport->total_traffic().bytes_sent, sent);
      }
    });
  }
}

TEST(OwnerReduction, SlowLinksGetSmallerPieces) {
  const auto on = [](double mbit, double milliseconds) {
    return elements_per_piece({mbit * 1e6 / 8, Seconds{milliseconds / 1e3}}, {});
  };
  const std::size_t most = OwnerOptions{}.piece_elements;
  EXPECT_EQ(on(1000, 0.1), most);
  EXPECT_EQ(on(0, 0), most) << "unlimited";
  EXPECT_EQ(on(1e9, 0), most);
  EXPECT_EQ(on(std::numeric_limits<double>::infinity(), 0), most);
  EXPECT_EQ(on(std::numeric_limits<double>::quiet_NaN(), 0), most);
  EXPECT_EQ(on(500, 0.1), most / 2);
  EXPECT_EQ(on(100, 0.1), most / 10);
  EXPECT_EQ(on(1, 0.1), 16u * 1024);
  // 4 pieces in flight to 3 other ranks, 2 bits per element, fill a round trip.
  EXPECT_GT(4 * 3 * 0.25 * static_cast<double>(on(100, 15)), 0.03 * 100e6 / 8);
  EXPECT_EQ(elements_per_piece({1e5, Seconds{0}}, {.piece_elements = 60}), 60u);
}

// One copy of the bucket: at most two bytes of filler and 80 of frame and prefix per piece. A
// rank's own part counts as the average of its others.
TEST(OwnerReduction, CountsOneCopyOfThePayload) {
  for (const int world : {1, 2, 4}) {
    constexpr std::size_t kSize = 1200;
    run_ranks(world, [&](std::unique_ptr<Transport> transport) {
      Exchange exchange(*transport, Seconds(30), kId);
      FloatOwner payload(transport->rank(), world, kSize);
      owner_reduce(exchange, payload);
      const std::uint64_t floats = kSize * sizeof(float);
      EXPECT_GE(exchange.payload_bytes, floats);
      EXPECT_LE(exchange.payload_bytes, floats + 82 * static_cast<std::uint64_t>(world));
    });
  }
}

// No rank keeps more messages than are in flight, however many pieces there are.
TEST(OwnerReduction, KeepsNoMoreMemoryThanIsInFlight) {
  run_ranks(3, [&](std::unique_ptr<Transport> transport) {
    Exchange exchange(*transport, Seconds(30), kId);
    SpareBuffers spare;
    exchange.spare = &spare;
    FloatOwner payload(transport->rank(), 3, 9000);
    owner_reduce(exchange, payload, {.piece_elements = 30, .ahead = 2});
    // Parts and answers, sent and received: ahead + 1 of each per peer, and one that is written.
    EXPECT_GT(spare.size(), 0u);
    EXPECT_LE(spare.size(), 4u * 2 * 3 + 1);
    for (const auto& buffer : spare) EXPECT_LE(buffer.capacity(), 1024u);
  });
}

TEST(OwnerReduction, ALostRankEndsItOnAllOthers) {
  expect_all_name_a_lost_rank([](Transport& transport) {
    Exchange exchange(transport, Seconds(30), kId);
    FloatOwner payload(transport.rank(), 4, 100'000);
    owner_reduce(exchange, payload, {.piece_elements = 1000});
  });
}

// Returns a message of rank 1 about units [begin, begin + units), with `bytes` after the prefix.
std::vector<std::byte> message(std::uint32_t kind, std::uint32_t units, std::uint64_t begin,
                               std::size_t bytes) {
  std::vector<std::byte> all(kOwnerPrefixBytes + bytes);
  store_value(std::span(all), 0, kind);
  store_value(std::span(all), 4, units);
  store_value(std::span(all), 8, begin);
  return all;
}

// Runs rank 0 of two ranks with 20 units; rank 1 sends `frame` in place of its part and keeps
// waiting. Returns the error of rank 0.
std::string error_of(const std::vector<std::byte>& payload,
                     const std::function<void(std::vector<std::byte>&)>& alter = {},
                     bool fixed = false) {
  const auto thrown = try_ranks(2, [&](std::unique_ptr<Transport> transport) {
    Exchange exchange(*transport, Seconds(10), kId);
    if (transport->rank() == 0) {
      FloatOwner owner(0, 2, 20 * kUnit, fixed);
      try {
        owner_reduce(exchange, owner);
      } catch (const Error& error) {
        transport->abandon(error.what());
        throw;
      }
      return;
    }
    const FrameHeaderBytes header = encode_header(kId, 1, payload);
    auto altered = payload;
    if (alter) alter(altered);
    FramedSend send(exchange, 0, header, altered);
    FramedReceive part(exchange, 0, 1000);
    part.wait_header(exchange);
    part.wait_payload(exchange);
    FramedReceive never(exchange, 0, 1000);
    never.wait_header(exchange);
    never.wait_payload(exchange);
    FramedReceive after(exchange, 0, 1000);
    after.wait_header(exchange);
  });
  return error_text(thrown[0], ErrorCode::bad_frame);
}

TEST(OwnerReduction, ABadPartIsRefusedAndItsSenderNamed) {
  constexpr std::size_t kBytes = 10 * kUnit * sizeof(float);
  const std::pair<std::string, std::string> cases[] = {
      {error_of(message(0, 10, 0, kBytes + 1)), "announces a payload of 137 bytes"},
      {error_of(message(0, 10, 0, kBytes - 1)), "has 119 bytes"},
      {error_of(message(0, 10, 0, kBytes - 1), {}, true),
       "of 135 bytes for bucket 1, step 2; it must have 136"},
      {error_of(message(0, 10, 0, kBytes + 1), {}, true), "announces a payload of 137 bytes"},
      {error_of({}), "sent a message of 0 bytes"},
      {error_of(message(0, 10, 10, kBytes)), "a part of 10 units from unit 10 on"},
      {error_of(message(0, 9, 0, kBytes)), "a part of 9 units from unit 0 on"},
      {error_of(message(1, 10, 0, kBytes)), "an answer of 10 units from unit 0 on"},
      {error_of(message(7, 10, 0, kBytes)), "an unknown message of 10 units"},
      {error_of(message(0, 10, 0, kBytes), [](auto& bytes) { bytes[50] ^= std::byte{4}; }),
       "altered in transit"},
      {error_of(message(0, 10, 0, kBytes), [](auto& bytes) { bytes[9] ^= std::byte{4}; }),
       "altered in transit"}};
  for (const auto& [text, expected] : cases) {
    EXPECT_NE(text.find(expected), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace thinreduce::owner_test
