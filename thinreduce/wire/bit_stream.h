// Numbers of a few bits one after another, the lowest bit of the first byte first.
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

// The same Rice codes as BitReader::take_rice takes, four at a time and faster. Goes on where
// `reader` is, which is where this one is again after finish().
class RiceReader {
 public:
  // low <= 32
  RiceReader(BitReader& reader, unsigned low, std::uint64_t limit)
      : reader_(reader), bytes_(reader.bytes()), low_(low), limit_(limit) {
    start();
  }
  void finish() { reader_.seek(next_ * 8 - count_); }
  // At most four values.
  void take(std::span<std::uint64_t> values) {
    if (values.size() == 4 && low_ <= kShort && take_together<4>(values.data())) return;
    finish();
    for (std::uint64_t& value : values) value = reader_.take_rice(low_, limit_);
    start();
  }

 private:
  static constexpr unsigned kShort = 10;  // four codes of so many low bits fit nearly always
  static constexpr unsigned kHeld = 56;   // bits at hand after more bytes have joined them

  [[nodiscard]] std::uint64_t load() const {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes_.data() + next_, sizeof(word));
    return word;
  }
  void start() {
    next_ = reader_.bits_read() / 8;
    held_ = 0;
    count_ = 0;
    const auto skip = static_cast<unsigned>(reader_.bits_read() % 8);
    if (skip == 0) return;
    if (next_ < bytes_.size()) held_ = std::to_integer<std::uint64_t>(bytes_[next_]) >> skip;
    count_ = 8 - skip;
    ++next_;
  }
  // Does not look how long the codes are until the last. Behind the bits at hand come ones, and an
  // arithmetic shift keeps them coming, so there is always one to find. More bytes join the bits at
  // hand above them: the address is known before the codes in front of them are.
  template <unsigned kCodes>
  bool take_together(std::uint64_t* values) {
    if (next_ + sizeof(held_) > bytes_.size()) return false;
    held_ |= load() << count_;
    next_ += (63 - count_) / 8;
    count_ |= kHeld;
    auto word = static_cast<std::int64_t>(held_ | ~std::uint64_t{0} << kHeld);
    unsigned used = 0;
    for (unsigned i = 0; i < kCodes; ++i) {
      const auto quotient =
          static_cast<unsigned>(__builtin_ctzll(static_cast<std::uint64_t>(word)));
      const unsigned length = quotient + 1 + low_;
      const auto rest = static_cast<std::uint64_t>(word >> (quotient + 1));
      values[i] = std::uint64_t{quotient} << low_ | (rest & ((std::uint64_t{1} << low_) - 1));
      word >>= length % 64;
      used += length;
    }
    if (used > kHeld) return false;
    held_ >>= used;
    count_ -= used;
    return true;
  }

  BitReader& reader_;
  std::span<const std::byte> bytes_;
  unsigned low_;
  std::uint64_t limit_;
  std::size_t next_ = 0;    // the byte behind those at hand
  std::uint64_t held_ = 0;  // may have more than it counts, but not other ones than come next
  unsigned count_ = 0;
};

using kernels::packed_bytes;
// Appends all codes, each below 2^bits; bits <= 16.
void pack_codes(std::span<const std::uint16_t> codes, unsigned bits, std::vector<std::byte>& bytes);
// `bytes` has packed_bytes(codes.size(), bits). Returns the largest code.
[[nodiscard]] std::uint16_t unpack_codes(std::span<const std::byte> bytes, unsigned bits,
                                         std::span<std::uint16_t> codes);

}  // namespace thinreduce
