#include "thinreduce/methods/quantize/pack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "thinreduce/ensure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/methods/quantize/pack.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

#ifndef THINREDUCE_KERNELS_PACK_CONSTANTS
#define THINREDUCE_KERNELS_PACK_CONSTANTS
namespace thinreduce::kernels {
constexpr std::size_t kWordRowBytes = kPackRow * sizeof(std::uint32_t);
// After this many rows, codes of any width end at a word boundary.
constexpr std::size_t kBitRows = 32;
constexpr std::uint32_t kNotACode = 0xffffffff;

// x / radix = (x * factor >> 16) >> shift for every 16-bit x; a test tries all of them.
struct Divider {
  std::uint16_t factor;
  int shift;
};
constexpr Divider divider(std::uint32_t radix) {
  return radix == 3 ? Divider{0xaaab, 1} : Divider{0xe38f, 3};
}
}  // namespace thinreduce::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Words = hn::CappedTag<std::uint32_t, kPackRow>;

#if HWY_TARGET == HWY_SCALAR
// This target is compiled but never chosen: one lane cannot be reinterpreted as bytes or halves.
HWY_INLINE void store_words(hn::Vec<Words> value, std::byte* to) {
  const std::uint32_t word = hn::GetLane(value);
  std::memcpy(to, &word, sizeof(word));
}
HWY_INLINE hn::Vec<Words> load_words(const std::byte* from) {
  std::uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return hn::Set(Words(), word);
}
#else
using Bytes = hn::Repartition<std::uint8_t, Words>;
using Halves = hn::Repartition<std::uint16_t, Words>;

// Payloads may be unaligned.
HWY_INLINE void store_words(hn::Vec<Words> value, std::byte* to) {
  hn::StoreU(hn::BitCast(Bytes(), value), Bytes(), reinterpret_cast<std::uint8_t*>(to));
}
HWY_INLINE hn::Vec<Words> load_words(const std::byte* from) {
  return hn::BitCast(Words(), hn::LoadU(Bytes(), reinterpret_cast<const std::uint8_t*>(from)));
}
#endif

// Packs 32 rows. The loop is unrolled, so that shifts and branches are known at compile time.
template <int kBits>
HWY_INLINE void pack_group(const std::uint32_t* codes, std::byte* out) {
  const Words words;
  const std::size_t lanes = hn::Lanes(words);
  for (std::size_t lane = 0; lane < kPackRow; lane += lanes) {
    auto word = hn::Zero(words);
    std::byte* to = out + lane * sizeof(std::uint32_t);
    int filled = 0;
    HWY_UNROLL(32)
    for (int row = 0; row < static_cast<int>(kBitRows); ++row) {
      const auto code = hn::LoadU(words, codes + static_cast<std::size_t>(row) * kPackRow + lane);
      word = hn::Or(word, hn::ShiftLeftSame(code, filled));
      filled += kBits;
      if (filled >= 32) {
        store_words(word, to);
        to += kWordRowBytes;
        filled -= 32;
        word = filled == 0 ? hn::Zero(words) : hn::ShiftRightSame(code, kBits - filled);
      }
    }
  }
}

template <int kBits>
HWY_INLINE hn::Vec<Words> unpack_group(const std::byte* in, hn::Vec<Words> largest,
                                       std::uint32_t* codes) {
  const Words words;
  const std::size_t lanes = hn::Lanes(words);
  const auto mask = hn::Set(words, (1u << kBits) - 1);
  for (std::size_t lane = 0; lane < kPackRow; lane += lanes) {
    const std::byte* from = in + lane * sizeof(std::uint32_t);
    auto word = hn::Zero(words);
    int left = 0;
    HWY_UNROLL(32)
    for (int row = 0; row < static_cast<int>(kBitRows); ++row) {
      auto code = word;
      if (left < kBits) {
        const auto next = load_words(from);
        from += kWordRowBytes;
        code = left == 0 ? next : hn::Or(word, hn::ShiftLeftSame(next, left));
        word = hn::ShiftRightSame(next, kBits - left);
        left += 32 - kBits;
      } else {
        word = hn::ShiftRightSame(word, kBits);
        left -= kBits;
      }
      code = hn::And(code, mask);
      largest = hn::Max(largest, code);
      hn::StoreU(code, words, codes + static_cast<std::size_t>(row) * kPackRow + lane);
    }
  }
  return largest;
}

template <int kBits>
HWY_NOINLINE void pack_width(const std::uint32_t* codes, std::size_t rows, std::byte* out) {
  for (std::size_t row = 0; row < rows; row += kBitRows) {
    pack_group<kBits>(codes + row * kPackRow, out);
    out += kBits * kWordRowBytes;
  }
}

template <int kBits>
HWY_NOINLINE std::uint32_t unpack_width(const std::byte* in, std::size_t rows,
                                        std::uint32_t* codes) {
  const Words words;
  auto largest = hn::Zero(words);
  for (std::size_t row = 0; row < rows; row += kBitRows) {
    largest = unpack_group<kBits>(in, largest, codes + row * kPackRow);
    in += kBits * kWordRowBytes;
  }
  return hn::GetLane(hn::MaxOfLanes(words, largest));
}

// Wider codes are sums over many ranks: there, the plain loop is fast enough.
void pack_bits(const std::uint32_t* codes, std::size_t rows, std::uint32_t bits, std::byte* out) {
  switch (bits) {
    case 2:
      return pack_width<2>(codes, rows, out);
    case 3:
      return pack_width<3>(codes, rows, out);
    case 4:
      return pack_width<4>(codes, rows, out);
    case 5:
      return pack_width<5>(codes, rows, out);
    case 6:
      return pack_width<6>(codes, rows, out);
    case 7:
      return pack_width<7>(codes, rows, out);
    case 8:
      return pack_width<8>(codes, rows, out);
    default:
      return reference::pack_bits(codes, rows, bits, out);
  }
}

std::uint32_t unpack_bits(const std::byte* in, std::size_t rows, std::uint32_t bits,
                          std::uint32_t* codes) {
  switch (bits) {
    case 2:
      return unpack_width<2>(in, rows, codes);
    case 3:
      return unpack_width<3>(in, rows, codes);
    case 4:
      return unpack_width<4>(in, rows, codes);
    case 5:
      return unpack_width<5>(in, rows, codes);
    case 6:
      return unpack_width<6>(in, rows, codes);
    case 7:
      return unpack_width<7>(in, rows, codes);
    case 8:
      return unpack_width<8>(in, rows, codes);
    default:
      return reference::unpack_bits(in, rows, bits, codes);
  }
}

void pack_digits(const std::uint32_t* codes, std::size_t word_rows, const Packing& packing,
                 std::byte* out) {
#if HWY_TARGET == HWY_SCALAR
  reference::pack_digits(codes, word_rows, packing, out);
#else
  const Words words;
  const std::size_t lanes = hn::Lanes(words);
  const auto radix = hn::Set(Halves(), static_cast<std::uint16_t>(packing.radix));
  const std::size_t digits = packing.digits;
  for (std::size_t i = 0; i < word_rows; ++i, codes += 2 * digits * kPackRow) {
    for (std::size_t lane = 0; lane < kPackRow; lane += lanes) {
      auto sum = hn::Zero(Halves());
      for (std::size_t digit = digits; digit-- > 0;) {
        const auto lower = hn::LoadU(words, codes + digit * kPackRow + lane);
        const auto upper = hn::LoadU(words, codes + (digit + digits) * kPackRow + lane);
        const auto both = hn::Or(lower, hn::ShiftLeft<16>(upper));
        sum = hn::Add(hn::Mul(sum, radix), hn::BitCast(Halves(), both));
      }
      store_words(hn::BitCast(words, sum), out + lane * sizeof(std::uint32_t));
    }
    out += kWordRowBytes;
  }
#endif
}

std::uint32_t unpack_digits(const std::byte* in, std::size_t word_rows, const Packing& packing,
                            std::uint32_t* codes) {
#if HWY_TARGET == HWY_SCALAR
  return reference::unpack_digits(in, word_rows, packing, codes);
#else
  const Words words;
  const Halves halves;
  const std::size_t lanes = hn::Lanes(words);
  const auto radix = hn::Set(halves, static_cast<std::uint16_t>(packing.radix));
  const auto factor = hn::Set(halves, divider(packing.radix).factor);
  const int shift = divider(packing.radix).shift;
  const auto lower = hn::Set(words, 0xffff);
  const std::size_t digits = packing.digits;
  auto rest = hn::Zero(halves);
  for (std::size_t i = 0; i < word_rows; ++i, codes += 2 * digits * kPackRow) {
    for (std::size_t lane = 0; lane < kPackRow; lane += lanes) {
      auto sum = hn::BitCast(halves, load_words(in + lane * sizeof(std::uint32_t)));
      for (std::size_t digit = 0; digit < digits; ++digit) {
        const auto quotient = hn::ShiftRightSame(hn::MulHigh(sum, factor), shift);
        const auto both = hn::BitCast(words, hn::Sub(sum, hn::Mul(quotient, radix)));
        hn::StoreU(hn::And(both, lower), words, codes + digit * kPackRow + lane);
        hn::StoreU(hn::ShiftRight<16>(both), words, codes + (digit + digits) * kPackRow + lane);
        sum = quotient;
      }
      rest = hn::Or(rest, sum);
    }
    in += kWordRowBytes;
  }
  const auto clean = hn::AllTrue(words, hn::Eq(hn::BitCast(words, rest), hn::Zero(words)));
  return clean ? packing.radix - 1 : kNotACode;
#endif
}

void add_codes(std::span<std::uint32_t> sum, std::span<const std::uint32_t> codes) {
  const hn::ScalableTag<std::uint32_t> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= sum.size(); i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, &sum[i]), hn::LoadU(d, &codes[i])), d, &sum[i]);
  }
  reference::add_codes(sum.subspan(i), codes.subspan(i));
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace {

std::size_t rows_of(std::size_t codes) {
  return (codes + kPackRow - 1) / kPackRow;
}

std::uint32_t load_word(const std::byte* in, std::size_t index) {
  std::uint32_t word;
  std::memcpy(&word, in + index * sizeof(word), sizeof(word));
  return word;
}
void store_word(std::byte* out, std::size_t index, std::uint32_t word) {
  std::memcpy(out + index * sizeof(word), &word, sizeof(word));
}

}  // namespace

namespace reference {

// `rows` may be fewer than 32 here, for the end of a run.
void pack_bits(const std::uint32_t* codes, std::size_t rows, std::uint32_t bits, std::byte* out) {
  for (std::size_t column = 0; column < kPackRow; ++column) {
    std::uint64_t word = 0;
    std::uint32_t filled = 0;
    std::size_t row_out = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      word |= static_cast<std::uint64_t>(codes[row * kPackRow + column]) << filled;
      filled += bits;
      if (filled >= 32) {
        store_word(out, row_out++ * kPackRow + column, static_cast<std::uint32_t>(word));
        word >>= 32;
        filled -= 32;
      }
    }
    if (filled > 0) store_word(out, row_out * kPackRow + column, static_cast<std::uint32_t>(word));
  }
}

std::uint32_t unpack_bits(const std::byte* in, std::size_t rows, std::uint32_t bits,
                          std::uint32_t* codes) {
  std::uint32_t largest = 0;
  for (std::size_t column = 0; column < kPackRow; ++column) {
    std::uint64_t word = 0;
    std::uint32_t left = 0;
    std::size_t row_in = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      if (left < bits) {
        word |= static_cast<std::uint64_t>(load_word(in, row_in++ * kPackRow + column)) << left;
        left += 32;
      }
      const auto code = static_cast<std::uint32_t>(word & ((1u << bits) - 1));
      largest = std::max(largest, code);
      codes[row * kPackRow + column] = code;
      word >>= bits;
      left -= bits;
    }
  }
  return largest;
}

void pack_digits(const std::uint32_t* codes, std::size_t words, const Packing& packing,
                 std::byte* out) {
  for (std::size_t i = 0; i < words * kPackRow; ++i) {
    const std::uint32_t* column =
        codes + i / kPackRow * 2 * packing.digits * kPackRow + i % kPackRow;
    std::uint32_t halves[2] = {0, 0};
    for (std::uint32_t digit = 2 * packing.digits; digit-- > 0;) {
      auto& half = halves[digit / packing.digits];
      half = half * packing.radix + column[digit * kPackRow];
    }
    store_word(out, i, halves[0] | halves[1] << 16);
  }
}

std::uint32_t unpack_digits(const std::byte* in, std::size_t words, const Packing& packing,
                            std::uint32_t* codes) {
  std::uint32_t rest = 0;
  for (std::size_t i = 0; i < words * kPackRow; ++i) {
    std::uint32_t* column = codes + i / kPackRow * 2 * packing.digits * kPackRow + i % kPackRow;
    const std::uint32_t word = load_word(in, i);
    std::uint32_t halves[2] = {word & 0xffff, word >> 16};
    for (std::uint32_t digit = 0; digit < 2 * packing.digits; ++digit) {
      auto& half = halves[digit / packing.digits];
      column[digit * kPackRow] = half % packing.radix;
      half /= packing.radix;
    }
    rest |= halves[0] | halves[1];
  }
  return rest == 0 ? packing.radix - 1 : kNotACode;
}

void add_codes(std::span<std::uint32_t> sum, std::span<const std::uint32_t> codes) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += codes[i];
}

}  // namespace reference

THINREDUCE_KERNEL(pack_bits);
THINREDUCE_KERNEL(unpack_bits);
THINREDUCE_KERNEL(pack_digits);
THINREDUCE_KERNEL(unpack_digits);
THINREDUCE_KERNEL(add_codes);

Packing Packing::of(std::uint32_t symbols) {
  ensure(symbols >= 1 && symbols <= kMaxPackedSymbols, "a packing must have 1 to 65536 symbols",
         symbols);
  if (symbols == 3) return {0, 3, 10};
  if (symbols == 9) return {0, 9, 5};
  return {std::max(1u, static_cast<std::uint32_t>(std::bit_width(symbols - 1))), 0, 0};
}

std::size_t Packing::bytes(std::size_t codes) const {
  const std::size_t rows = rows_of(codes);
  if (bits > 0) return (rows * bits + 31) / 32 * kWordRowBytes;
  const std::size_t word_rows = std::size_t{2} * digits;
  return (rows + word_rows - 1) / word_rows * kWordRowBytes;
}

void pack(std::span<const std::uint32_t> codes, const Packing& packing, std::span<std::byte> out) {
  ensure(codes.size() % kPackRow == 0 && out.size() == packing.bytes(codes.size()),
         "pack: whole rows, and bytes that fit them", codes.size(), out.size());
  const std::size_t rows = codes.size() / kPackRow;
  if (packing.bits > 0) {
    const std::size_t whole = rows / kBitRows * kBitRows;
    THINREDUCE_CALL(pack_bits)(codes.data(), whole, packing.bits, out.data());
    reference::pack_bits(codes.data() + whole * kPackRow, rows - whole, packing.bits,
                         out.data() + packing.bytes(whole * kPackRow));
    return;
  }
  const std::size_t word_rows = std::size_t{2} * packing.digits;
  const std::size_t whole = rows / word_rows;
  THINREDUCE_CALL(pack_digits)(codes.data(), whole, packing, out.data());
  if (rows % word_rows > 0) {
    std::array<std::uint32_t, 20 * kPackRow> padded{};
    const auto rest = codes.subspan(whole * word_rows * kPackRow);
    std::copy(rest.begin(), rest.end(), padded.begin());
    reference::pack_digits(padded.data(), 1, packing, out.data() + whole * kWordRowBytes);
  }
}

std::uint32_t unpack(std::span<const std::byte> in, const Packing& packing,
                     std::span<std::uint32_t> codes) {
  ensure(codes.size() % kPackRow == 0 && in.size() == packing.bytes(codes.size()),
         "unpack: whole rows, and bytes that fit them", codes.size(), in.size());
  const std::size_t rows = codes.size() / kPackRow;
  if (packing.bits > 0) {
    const std::size_t whole = rows / kBitRows * kBitRows;
    const auto largest = THINREDUCE_CALL(unpack_bits)(in.data(), whole, packing.bits, codes.data());
    const auto at_end =
        reference::unpack_bits(in.data() + packing.bytes(whole * kPackRow), rows - whole,
                               packing.bits, codes.data() + whole * kPackRow);
    return std::max(largest, at_end);
  }
  const std::size_t word_rows = std::size_t{2} * packing.digits;
  const std::size_t whole = rows / word_rows;
  auto largest = THINREDUCE_CALL(unpack_digits)(in.data(), whole, packing, codes.data());
  if (rows % word_rows > 0) {
    std::array<std::uint32_t, 20 * kPackRow> padded{};
    largest = std::max(largest, reference::unpack_digits(in.data() + whole * kWordRowBytes, 1,
                                                         packing, padded.data()));
    const auto rest = codes.subspan(whole * word_rows * kPackRow);
    std::copy_n(padded.begin(), rest.size(), rest.begin());
  }
  return largest;
}

void add_codes(std::span<std::uint32_t> sum, std::span<const std::uint32_t> codes) {
  ensure(sum.size() == codes.size(), "add_codes: spans must have the same length", sum.size(),
         codes.size());
  THINREDUCE_CALL(add_codes)(sum, codes);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
