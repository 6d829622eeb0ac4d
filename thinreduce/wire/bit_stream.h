// Numbers of a few bits one after another, the lowest bit of the first byte first.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace thinreduce {

class BitWriter {
 public:
  // Appends to `bytes`.
  explicit BitWriter(std::vector<std::byte>& bytes) : bytes_(bytes) {}
  // The `count` low bits of `value`, which has no others; count <= 32.
  void put(std::uint64_t value, unsigned count) {
    held_ |= value << used_;
    used_ += count;
    if (used_ >= 32) flush_half();
  }
  // `quotient` zeros and a one.
  void put_unary(std::uint64_t quotient);
  // A Rice code: the unary quotient of `value` by 2^low, then its `low` low bits; low <= 16.
  void put_rice(std::uint64_t value, unsigned low) {
    const std::uint64_t quotient = value >> low;
    const std::uint64_t rest = value & ((std::uint64_t{1} << low) - 1);
    if (quotient + 1 + low <= 32) {
      return put((rest << 1 | 1) << quotient, static_cast<unsigned>(quotient) + 1 + low);
    }
    put_unary(quotient);
    put(rest, low);
  }
  // Fills up the last byte with zeros.
  void finish();

 private:
  void flush_half();

  std::vector<std::byte>& bytes_;
  std::uint64_t held_ = 0;
  unsigned used_ = 0;
};

// Reads from bytes that nobody vouches for: behind their end there are zeros, and bits_read()
// tells.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  // count <= 57
  [[nodiscard]] std::uint64_t take(unsigned count) {
    const std::uint64_t value = peek() & ((std::uint64_t{1} << count) - 1);
    at_ += count;
    return value;
  }
  // Zeros up to the next one, which is taken too; stops at a number above `limit`.
  [[nodiscard]] std::uint64_t take_unary(std::uint64_t limit);
  // A Rice code: a unary quotient, at most `limit` or the result is above it, then `low` bits.
  [[nodiscard]] std::uint64_t take_rice(unsigned low, std::uint64_t limit) {
    const std::uint64_t word = peek();
    const auto quotient = static_cast<unsigned>(std::countr_zero(word));
    if (quotient + low < 56) {  // all of it is in the word
      at_ += quotient + 1 + low;
      return std::uint64_t{quotient} << low | ((word >> (quotient + 1)) & ((1u << low) - 1));
    }
    const std::uint64_t high = take_unary(limit);
    return high << low | take(low);
  }
  [[nodiscard]] std::uint64_t bits_read() const { return at_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  // Goes on at that bit.
  void seek(std::uint64_t bit) { at_ = bit; }

 private:
  static constexpr unsigned kSure = 57;
  // At least kSure bits.
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

// Bytes that `count` numbers of `bits` bits take.
[[nodiscard]] constexpr std::size_t packed_bytes(std::size_t count, unsigned bits) {
  return (count * bits + 7) / 8;
}
// Appends all codes, each below 2^bits; bits <= 16.
void pack_codes(std::span<const std::uint16_t> codes, unsigned bits, std::vector<std::byte>& bytes);
// `bytes` has packed_bytes(codes.size(), bits). Returns the largest code.
[[nodiscard]] std::uint16_t unpack_codes(std::span<const std::byte> bytes, unsigned bits,
                                         std::span<std::uint16_t> codes);

}  // namespace thinreduce
