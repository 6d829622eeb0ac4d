// Frame headers and payloads, as they are and with the checksum put right.
#include "thinreduce/wire/frame.h"

#include "tests/fuzz/fuzz.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce::fuzz {
namespace {

constexpr FrameId kId{
    .method = 3, .bucket = 7, .step = 11, .elements = 1000, .layout_hash = 0x1234567890};

void decode(std::span<const std::byte> header, std::span<const std::byte> payload, int rank,
            std::uint64_t number) {
  accepts([&] {
    const FrameHeader decoded = decode_header(header, rank, number);
    expect(decoded.rank == static_cast<std::uint32_t>(rank), "a frame names its sender");
    accepts([&] { check_id(decoded, kId); });
    accepts([&] { check_payload(decoded, payload); });
  });
}

}  // namespace

void run(Input input) {
  const bool whole = input.value<std::uint8_t>() % 2 == 0;
  const int rank = input.value<std::uint8_t>() % 4;
  const auto number = input.value<std::uint8_t>();
  Bytes header = copy(input.take(kFrameHeaderBytes));
  const Bytes payload = copy(input.rest());
  decode(header, payload, rank, number);
  if (header.size() < kFrameHeaderBytes || whole) return;
  store_value(header, 0, kFrameMagic);
  store_value(header, 4, kFrameVersion);
  store_value(header, 48, checksum(payload));
  store_value(header, 56, checksum(std::span<const std::byte>(header).first(56), number));
  decode(header, payload, rank, number);
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (const std::size_t length : {0, 1, 100}) {
    for (const std::uint8_t mode : {0, 1}) {
      const Bytes payload(length, std::byte{5});
      auto header = encode_header(kId, 1, payload);
      number_header(header, 2);
      Bytes seed{std::byte{mode}, std::byte{1}, std::byte{2}};
      put_bytes(seed, header);
      put_bytes(seed, payload);
      all.push_back(seed);
    }
  }
  return all;
}

}  // namespace thinreduce::fuzz
