#include "thinreduce/wire/bit_stream.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "thinreduce/error.h"

namespace thinreduce {

// Fewer than 32 bits are held between calls, so 32 more always fit.
void BitWriter::flush_half() {
  const auto low = static_cast<std::uint32_t>(held_);
  const std::size_t end = bytes_.size();
  bytes_.resize(end + sizeof(low));
  std::memcpy(&bytes_[end], &low, sizeof(low));
  held_ >>= 32;
  used_ -= 32;
}

void BitWriter::put_unary(std::uint64_t quotient) {
  for (; quotient >= 32; quotient -= 32) put(0, 32);
  put(std::uint64_t{1} << quotient, static_cast<unsigned>(quotient) + 1);
}

void BitWriter::finish() {
  for (; used_ > 0; used_ -= std::min(used_, 8u)) {
    bytes_.push_back(static_cast<std::byte>(held_));
    held_ >>= 8;
  }
  held_ = 0;
}

std::uint64_t BitReader::take_unary(std::uint64_t limit) {
  std::uint64_t zeros = 0;
  while (zeros <= limit) {
    const std::uint64_t word = peek();
    const auto here = static_cast<unsigned>(std::countr_zero(word));
    if (here < kSure) {
      at_ += here + 1;
      return zeros + here;
    }
    zeros += kSure;
    at_ += kSure;
  }
  return zeros;
}

void pack_codes(std::span<const std::uint16_t> codes, unsigned bits,
                std::vector<std::byte>& bytes) {
  const std::size_t start = bytes.size();
  bytes.resize(start + packed_bytes(codes.size(), bits));
  std::byte* out = bytes.data() + start;
  std::uint64_t held = 0;
  unsigned used = 0;
  for (const std::uint16_t code : codes) {
    held |= std::uint64_t{code} << used;
    used += bits;
    if (used >= 32) {
      const auto low = static_cast<std::uint32_t>(held);
      std::memcpy(out, &low, sizeof(low));
      out += sizeof(low);
      held >>= 32;
      used -= 32;
    }
  }
  std::memcpy(out, &held, (used + 7) / 8);
}

namespace {

// Codes from words of 8 bytes, kAtOnce from each, as long as there are whole words. Returns how
// many.
template <std::size_t kAtOnce>
std::size_t unpack_words(std::span<const std::byte> bytes, unsigned bits,
                         std::span<std::uint16_t> codes, std::uint32_t& largest) {
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  std::size_t i = 0;
  for (; i + kAtOnce <= codes.size(); i += kAtOnce) {
    const std::size_t at = i * bits;
    std::uint64_t word = 0;
    if (at / 8 + sizeof(word) > bytes.size()) break;
    std::memcpy(&word, bytes.data() + at / 8, sizeof(word));
    word >>= at % 8;
    for (std::size_t j = 0; j < kAtOnce; ++j) {
      const auto code = static_cast<std::uint32_t>(word & mask);
      codes[i + j] = static_cast<std::uint16_t>(code);
      largest = std::max(largest, code);
      word >>= bits;
    }
  }
  return i;
}

}  // namespace

std::uint16_t unpack_codes(std::span<const std::byte> bytes, unsigned bits,
                           std::span<std::uint16_t> codes) {
  ensure(bytes.size() == packed_bytes(codes.size(), bits), "unpack_codes: as many bytes as needed");
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  // At most 7 + 3 * 16 + 16 bits would be 71, so three of 16 bits fit, and four of up to 14.
  std::uint32_t largest = 0;
  std::size_t i = bits <= 14 ? unpack_words<4>(bytes, bits, codes, largest)
                             : unpack_words<3>(bytes, bits, codes, largest);
  for (; i < codes.size(); ++i) {
    const std::size_t at = i * bits;
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at / 8, std::min(sizeof(word), bytes.size() - at / 8));
    codes[i] = static_cast<std::uint16_t>((word >> (at % 8)) & mask);
    largest = std::max<std::uint32_t>(largest, codes[i]);
  }
  return static_cast<std::uint16_t>(largest);
}

}  // namespace thinreduce
