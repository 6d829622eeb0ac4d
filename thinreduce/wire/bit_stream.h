// Numbers of a few bits each, packed without gaps, the lowest bit of the first byte first.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "thinreduce/kernels/bit_loops.h"

namespace thinreduce {

class BitWriter {
 public:
  // Appends to `bytes`.
  explicit BitWriter(std::vector<std::byte>& bytes) : bytes_(bytes) {}
  // Appends the `count` low bits of `value`, whose other bits must be 0; count <= 32.
  void put(std::uint64_t value, unsigned count) {
    held_ |= value << used_;
    used_ += count;
    if (used_ >= 32) flush_half();
  }
  // Calls write(put), in which put(value, count) does the same for count <= 56; the counts must add
  // up to `bits`. Faster than single calls.
  template <typename Write>
  void put_all(std::size_t bits, const Write& write);
  // Appends `zeros` zeros and a one.
  void put_unary(std::uint64_t zeros);
  // Fills the last byte with zeros.
  void finish();

 private:
  void flush_half();

  std::vector<std::byte>& bytes_;
  std::uint64_t held_ = 0;
  unsigned used_ = 0;
};

// Stores a whole word per call, of which the next call overwrites the bytes that are not complete.
template <typename Write>
void BitWriter::put_all(std::size_t bits, const Write& write) {
  const std::size_t end = bytes_.size();
  bytes_.resize(end + (used_ + bits) / 8 + sizeof(held_));
  std::byte* to = bytes_.data() + end;
  std::uint64_t held = held_;
  unsigned used = used_;
  const auto put_bits = [&](std::uint64_t value, unsigned count) {
    held |= value << used;
    used += count;
    std::memcpy(to, &held, sizeof(held));
    to += used / 8;
    held >>= used & ~7u;
    used &= 7;
  };
  put_bits(0, 0);  // leaves at most 7 bits
  write(put_bits);
  bytes_.resize(static_cast<std::size_t>(to - bytes_.data()));
  held_ = held;
  used_ = used;
}

// Reads untrusted input. Past the end it yields zeros; bits_read() then exceeds the input size.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  // Returns the next `count` bits; count <= 57.
  [[nodiscard]] std::uint64_t take(unsigned count) {
    const std::uint64_t value = peek() & ((std::uint64_t{1} << count) - 1);
    at_ += count;
    return value;
  }
  // Returns the number of zeros before the next one, which it consumes too. Returns some number
  // above `limit` when there are more zeros than that.
  [[nodiscard]] std::uint64_t take_unary(std::uint64_t limit);
  [[nodiscard]] std::uint64_t bits_read() const { return at_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  // Continues at `bit`.
  void seek(std::uint64_t bit) { at_ = bit; }

 private:
  static constexpr unsigned kSure = 57;
  // Returns at least kSure bits.
  [[nodiscard]] std::uint64_t peek() const {
    const std::uint64_t first = at_ / 8;
    std::uint64_t word = 0;
    if (first + sizeof(word) <= bytes_.size()) {
      std::memcpy(&word, bytes_.data() + first, sizeof(word));
    } else if (first < bytes_.size()) {
      std::memcpy(&word, bytes_.data() + first, bytes_.size() - first);
    }
    return word >> (at_ % 8);
  }

  std::span<const std::byte> bytes_;
  std::uint64_t at_ = 0;
};

using kernels::packed_bytes;
// Appends all codes, each below 2^bits; bits <= 16.
void pack_codes(std::span<const std::uint16_t> codes, unsigned bits, std::vector<std::byte>& bytes);
// Unpacks `bytes`, which must have packed_bytes(codes.size(), bits) bytes, and returns the largest
// code.
[[nodiscard]] std::uint16_t unpack_codes(std::span<const std::byte> bytes, unsigned bits,
                                         std::span<std::uint16_t> codes);

}  // namespace thinreduce
