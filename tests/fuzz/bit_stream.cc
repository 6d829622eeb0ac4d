// Bit streams and Rice codes: no read leaves the input, and both readers of Rice codes agree.
#include "thinreduce/wire/bit_stream.h"

#include <algorithm>
#include <array>

#include "tests/fuzz/fuzz.h"
#include "thinreduce/wire/rice.h"

namespace thinreduce::fuzz {
namespace {

void read_bits(Input input) {
  const auto widths = input.take(16);
  const Bytes bytes = copy(input.rest());
  BitReader reader(bytes);
  // Some reads go beyond the end.
  for (std::size_t i = 0; i < 4 * bytes.size() + 16 && !widths.empty(); ++i) {
    const auto width = static_cast<unsigned>(widths[i % widths.size()]);
    const std::uint64_t before = reader.bits_read();
    if (width >= 128) {
      const std::uint64_t limit = width - 128;
      const std::uint64_t zeros = reader.take_unary(limit);
      const bool read = reader.bits_read() > before;
      expect(zeros > limit || read, "a unary code has at least one bit");
      if (!read) return;
    } else {
      const unsigned count = width % 58;
      const std::uint64_t value = reader.take(count);
      expect(count == 0 || value >> count == 0, "a value has as many bits as were asked for");
      expect(reader.bits_read() == before + count, "a reader counts what it reads");
    }
  }
}

void unpack(Input input) {
  const unsigned bits = 1 + input.value<std::uint8_t>() % 16;
  const Bytes given = copy(input.rest());
  const std::size_t count = given.size() * 8 / bits;
  const Bytes bytes(given.begin(),
                    given.begin() + static_cast<std::ptrdiff_t>(packed_bytes(count, bits)));
  std::vector<std::uint16_t> codes(count);
  const std::uint16_t largest = unpack_codes(bytes, bits, codes);
  expect(largest == (codes.empty() ? 0 : *std::ranges::max_element(codes)),
         "the largest code is that of the codes");
  Bytes again;
  pack_codes(codes, bits, again);
  std::vector<std::uint16_t> same(count);
  expect(unpack_codes(again, bits, same) == largest && same == codes, "codes survive packing");
}

// Reads the codes in batches, and one by one as the format says.
void read_rice(Input input) {
  const unsigned low = input.value<std::uint8_t>() % 33;
  const std::uint64_t limit = input.value<std::uint16_t>();
  const unsigned skip = input.value<std::uint8_t>() % 32;
  const Bytes bytes = copy(input.rest());
  BitReader batched(bytes);
  BitReader plain(bytes);
  batched.seek(skip);
  plain.seek(skip);
  RiceReader reader(batched, low, limit);
  std::array<std::uint64_t, RiceReader::kBatch> values{};
  while (plain.bits_read() < bytes.size() * 8) {
    reader.take(values);
    for (const std::uint64_t value : values) {
      const std::uint64_t quotient = plain.take_unary(limit);
      // Beyond the limit or the end anything may be read.
      if (quotient > limit || plain.bits_read() + low > bytes.size() * 8) return;
      expect(value == (quotient << low | plain.take(low)), "both readers read the same code");
    }
  }
  reader.finish();
  expect(batched.bits_read() == plain.bits_read(), "both readers end at the same bit");
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (const unsigned low : {0U, 3U, 10U, 20U}) {
    Bytes seed{std::byte{2}, static_cast<std::byte>(low), std::byte{0xFF}, std::byte{3},
               std::byte{0}};
    BitWriter writer(seed);
    for (std::uint64_t value = 0; value < 40; ++value) put_rice(writer, value * value, low);
    writer.finish();
    all.push_back(seed);
  }
  all.push_back(text_seed(std::string("\0\3\20\71\200\377abcdefghijklmnopqrstuvwxyz", 32)));
  all.push_back(text_seed("\1\2 some codes of three bits each"));
  return all;
}

void run(Input input) {
  switch (input.value<std::uint8_t>() % 3) {
    case 0:
      read_bits(input);
      break;
    case 1:
      unpack(input);
      break;
    default:
      read_rice(input);
  }
}

}  // namespace thinreduce::fuzz
