// Rice codes: the quotient of a value by 2^low in unary (zeros, then a one), then its `low` low
// bits. They suit gaps between positions; `low` is about the logarithm of the mean gap.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "thinreduce/wire/bit_stream.h"

namespace thinreduce {

// Appends a code; low <= 31.
inline void put_rice(BitWriter& writer, std::uint64_t value, unsigned low) {
  const std::uint64_t quotient = value >> low;
  const std::uint64_t rest = value & ((std::uint64_t{1} << low) - 1);
  if (quotient + 1 + low <= 32) {
    return writer.put((rest << 1 | 1) << quotient, static_cast<unsigned>(quotient) + 1 + low);
  }
  writer.put_unary(quotient);
  writer.put(rest, low);
}

// Appends the codes of several values, which have `bits` bits together. Four codes are joined
// before they are appended, because each append must wait for the one before it.
inline void put_rice(BitWriter& writer, std::span<const std::uint16_t> values, unsigned low,
                     std::size_t bits) {
  constexpr unsigned kMax = 56;  // bits that can be appended at a time
  const unsigned mask = (1u << low) - 1;
  const auto length_of = [&](unsigned value) { return (value >> low) + 1 + low; };
  const auto code_of = [&](unsigned value) {
    return std::uint64_t{(value & mask) << 1 | 1} << (value >> low);
  };
  writer.put_all(bits, [&](const auto& put) {
    const auto put_one = [&](unsigned value) {
      if (length_of(value) <= kMax) return put(code_of(value), length_of(value));
      unsigned zeros = value >> low;
      for (; zeros >= kMax; zeros -= kMax) put(0, kMax);
      put(std::uint64_t{1} << zeros, zeros + 1);
      put(value & mask, low);
    };
    std::size_t i = 0;
    for (; i + 4 <= values.size(); i += 4) {
      const unsigned a = values[i], b = values[i + 1], c = values[i + 2], d = values[i + 3];
      const unsigned ab = length_of(a) + length_of(b);
      const unsigned cd = length_of(c) + length_of(d);
      if (ab + cd <= kMax) {
        const std::uint64_t first = code_of(a) | code_of(b) << length_of(a);
        const std::uint64_t second = code_of(c) | code_of(d) << length_of(c);
        put(first | second << ab, ab + cd);
      } else {
        for (const unsigned value : {a, b, c, d}) put_one(value);
      }
    }
    for (; i < values.size(); ++i) put_one(values[i]);
  });
}

// Reads a code from untrusted input; low <= 32. A quotient above `limit` may be read as any other
// number above it.
[[nodiscard]] inline std::uint64_t take_rice(BitReader& reader, unsigned low, std::uint64_t limit) {
  const std::uint64_t quotient = reader.take_unary(limit);
  return quotient << low | reader.take(low);
}

// Reads codes from untrusted input, up to four at a time. Starts where `reader` is; finish() moves
// `reader` past the last code.
class RiceReader {
 public:
  static constexpr std::size_t kBatch = 4;

  // `low` and `limit` are as in take_rice().
  RiceReader(BitReader& reader, unsigned low, std::uint64_t limit)
      : reader_(reader), bytes_(reader.bytes()), low_(low), limit_(limit) {
    start();
  }
  void finish() { reader_.seek(next_ * 8 - count_); }
  // Fills `values`, at most kBatch of them.
  void take(std::span<std::uint64_t> values) {
    if (values.size() == kBatch && low_ <= kShort && take_batch(values.data())) return;
    finish();
    for (std::uint64_t& value : values) value = take_rice(reader_, low_, limit_);
    start();
  }

 private:
  static constexpr unsigned kShort = 10;  // a batch of codes with this many low bits nearly always
                                          // fits in kHeld bits
  static constexpr unsigned kHeld = 56;   // bits buffered after a load

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
  // Checks the length of the codes only after the last. Ones follow the buffered bits, and an
  // arithmetic shift keeps them coming, so the search for a one always ends. New bytes go above the
  // buffered bits: their address is known before the codes below them are decoded.
  bool take_batch(std::uint64_t* values) {
    if (next_ + sizeof(held_) > bytes_.size()) return false;
    held_ |= load() << count_;
    next_ += (63 - count_) / 8;
    count_ |= kHeld;
    auto word = static_cast<std::int64_t>(held_ | ~std::uint64_t{0} << kHeld);
    unsigned used = 0;
    for (std::size_t i = 0; i < kBatch; ++i) {
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
  std::size_t next_ = 0;  // the first byte that is not buffered
  std::uint64_t held_ =
      0;                // the buffered bits; bits above count_ are 0 or equal to those that come
  unsigned count_ = 0;  // buffered bits
};

}  // namespace thinreduce
