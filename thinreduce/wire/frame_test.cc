#include "thinreduce/wire/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/ranks.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce::frame_test {
namespace {

const FrameId kId{.method = 3, .bucket = 7, .step = 41, .elements = 1009, .layout_hash = 0xABCDEF};

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// Reads a whole frame from rank 2 as a receiver does, with the same errors.
FrameHeader read_frame(std::span<const std::byte> bytes, std::size_t limit) {
  const FrameHeader header = decode_header(bytes, 2);
  check_id(header, kId);
  if (header.payload_bytes > limit) throw Error(ErrorCode::bad_frame, "beyond the limit");
  check_payload(header, bytes.subspan(kFrameHeaderBytes));
  return header;
}

std::vector<std::byte> whole_frame(const FrameId& id, const std::string& payload) {
  const auto bytes = std::as_bytes(std::span(payload));
  const auto header = encode_header(id, 2, bytes);
  std::vector<std::byte> frame(header.size() + bytes.size());
  std::copy(header.begin(), header.end(), frame.begin());
  std::copy(bytes.begin(), bytes.end(), frame.begin() + kFrameHeaderBytes);
  return frame;
}

TEST(Frame, RoundTrips) {
  for (const std::string payload : {"", "x", "thinreduce"}) {
    const auto frame = whole_frame(kId, payload);
    const FrameHeader header = read_frame(frame, 1000);
    EXPECT_EQ(header.id, kId);
    EXPECT_EQ(header.rank, 2U);
    EXPECT_EQ(header.payload_bytes, payload.size());
  }
}

TEST(Frame, EveryFlippedBitIsRefused) {
  const auto good = whole_frame(kId, "payload");
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_THROW(read_frame(bad, 1000), Error) << "bit " << bit;
  }
}

// Frames of one exchange that are repeated or change places.
TEST(Frame, AHeaderIsRightOnlyAsTheMessageOfItsNumber) {
  auto header = encode_header(kId, 2, {});
  for (const std::uint64_t number : {0, 1, 7}) {
    number_header(header, number);
    EXPECT_EQ(decode_header(header, 2, number).id, kId);
    EXPECT_THROW((void)decode_header(header, 2, number + 1), Error) << number;
  }
}

TEST(Frame, AMessageChecksumDependsOnEverything) {
  const std::uint64_t sum = message_checksum(kId, 2, 5, 99);
  EXPECT_EQ(message_checksum(kId, 2, 5, 99), sum);
  EXPECT_NE(message_checksum(kId, 3, 5, 99), sum);
  EXPECT_NE(message_checksum(kId, 2, 6, 99), sum);
  EXPECT_NE(message_checksum(kId, 2, 5, 98), sum);
  std::vector<FrameId> others(5, kId);
  ++others[0].method;
  ++others[1].bucket;
  ++others[2].step;
  ++others[3].elements;
  ++others[4].layout_hash;
  for (const FrameId& other : others) EXPECT_NE(message_checksum(other, 2, 5, 99), sum);
}

TEST(Frame, EveryCutIsRefused) {
  const auto good = whole_frame(kId, "payload");
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_THROW(read_frame(std::span(good).first(length), 1000), Error) << length << " bytes";
  }
}

TEST(Frame, MismatchNamesTheFieldAndBothValues) {
  FrameId other = kId;
  other.step = 42;
  const auto frame = whole_frame(other, "");
  const auto text = thrown_text(ErrorCode::mismatch, [&] { (void)read_frame(frame, 1000); });
  EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
  EXPECT_NE(text.find("step 42, expected 41"), std::string::npos) << text;
}

// tests/golden/frames.txt has a verdict, a description and the frame's bytes on each line. It keeps
// the format from drifting: frames that are accepted or refused today must always be.
TEST(Frame, GoldenFrames) {
  std::ifstream file(THINREDUCE_SOURCE_DIR "/tests/golden/frames.txt");
  ASSERT_TRUE(file) << "tests/golden/frames.txt is missing";
  int accepted = 0;
  int refused = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string verdict;
    std::string description;
    std::string hex;
    std::getline(fields, verdict, '\t');
    std::getline(fields, description, '\t');
    std::getline(fields, hex, '\t');
    const auto bytes = from_hex(hex);
    try {
      (void)read_frame(bytes, 1000);
      EXPECT_EQ(verdict, "ok") << description;
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(verdict, to_string(error.code())) << description << ": " << error.what();
      ++refused;
    }
  }
  EXPECT_EQ(accepted, 3);
  EXPECT_EQ(refused, 12);
}

TEST(ByteReader, RefusesToReadBeyondTheEnd) {
  const std::vector<std::byte> bytes(5);
  ByteReader reader(bytes, "five bytes of rank 1");
  EXPECT_EQ(reader.value<std::uint32_t>(), 0U);
  const auto text = thrown_text(ErrorCode::bad_frame, [&] { (void)reader.value<float>(); });
  EXPECT_NE(text.find("five bytes of rank 1"), std::string::npos) << text;
  EXPECT_THROW(reader.finish(), Error);
  EXPECT_EQ(reader.value<std::uint8_t>(), 0U);
  EXPECT_NO_THROW(reader.finish());
}

}  // namespace
}  // namespace thinreduce::frame_test
