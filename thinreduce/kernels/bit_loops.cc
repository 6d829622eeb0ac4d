#include "thinreduce/kernels/bit_loops.h"

#include <algorithm>
#include <cstring>

#include "thinreduce/ensure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/kernels/bit_loops.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX2

// Four codes at a time move between 16 bits each and their places in a word. Codes may have up to
// 14 bits, since the first may start at bit 7 of a byte.
constexpr unsigned kMaxBits = 14;

std::uint64_t four_codes(unsigned bits) {
  return ((std::uint64_t{1} << bits) - 1) * 0x0001000100010001;
}

void pack_bits(std::span<const std::uint16_t> codes, unsigned bits, std::span<std::byte> bytes) {
  std::size_t i = 0;
  if (bits <= kMaxBits) {
    const std::uint64_t mask = four_codes(bits);
    // Eight codes end at a byte boundary.
    for (; i + 8 <= codes.size() && (i + 8) * bits / 8 + sizeof(mask) <= bytes.size(); i += 8) {
      std::uint64_t first = 0;
      std::uint64_t second = 0;
      std::memcpy(&first, &codes[i], sizeof(first));
      std::memcpy(&second, &codes[i + 4], sizeof(second));
      first = _pext_u64(first, mask);
      second = _pext_u64(second, mask);
      std::byte* to = &bytes[i * bits / 8];
      const unsigned whole = bits / 2;  // bytes of the first four, which may end with half a byte
      const unsigned held = 4 * bits - 8 * whole;
      second = second << held | (held == 0 ? 0 : first >> (8 * whole));
      std::memcpy(to, &first, sizeof(first));
      std::memcpy(to + whole, &second, sizeof(second));
    }
  }
  reference::pack_bits(codes.subspan(i), bits, bytes.subspan(i * bits / 8));
}

std::uint16_t unpack_bits(std::span<const std::byte> bytes, unsigned bits,
                          std::span<std::uint16_t> codes) {
  std::size_t i = 0;
  std::uint16_t largest = 0;
  if (bits <= kMaxBits) {
    const std::uint64_t mask = four_codes(bits);
    for (; i + 8 <= codes.size() && (i + 4) * bits / 8 + sizeof(mask) <= bytes.size(); i += 8) {
      std::uint64_t first = 0;
      std::uint64_t second = 0;
      std::memcpy(&first, &bytes[i * bits / 8], sizeof(first));
      std::memcpy(&second, &bytes[(i + 4) * bits / 8], sizeof(second));
      first = _pdep_u64(first, mask);
      second = _pdep_u64(second >> (4 * bits % 8), mask);
      std::memcpy(&codes[i], &first, sizeof(first));
      std::memcpy(&codes[i + 4], &second, sizeof(second));
    }
    for (std::size_t j = 0; j < i; ++j) largest = std::max(largest, codes[j]);
  }
  return std::max(largest,
                  reference::unpack_bits(bytes.subspan(i * bits / 8), bits, codes.subspan(i)));
}

#else

void pack_bits(std::span<const std::uint16_t> codes, unsigned bits, std::span<std::byte> bytes) {
  reference::pack_bits(codes, bits, bytes);
}
std::uint16_t unpack_bits(std::span<const std::byte> bytes, unsigned bits,
                          std::span<std::uint16_t> codes) {
  return reference::unpack_bits(bytes, bits, codes);
}

#endif

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

void pack_bits(std::span<const std::uint16_t> codes, unsigned bits, std::span<std::byte> bytes) {
  std::byte* out = bytes.data();
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
  if (used > 0) std::memcpy(out, &held, (used + 7) / 8);
}

std::uint16_t unpack_bits(std::span<const std::byte> bytes, unsigned bits,
                          std::span<std::uint16_t> codes) {
  const std::uint32_t mask = (std::uint32_t{1} << bits) - 1;
  std::uint16_t largest = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::size_t at = i * bits;
    std::uint32_t word = 0;  // 7 + 16 bits are enough
    std::memcpy(&word, &bytes[at / 8], std::min(sizeof(word), bytes.size() - at / 8));
    codes[i] = static_cast<std::uint16_t>((word >> (at % 8)) & mask);
    largest = std::max(largest, codes[i]);
  }
  return largest;
}

}  // namespace reference

THINREDUCE_KERNEL(pack_bits);
THINREDUCE_KERNEL(unpack_bits);

void pack_bits(std::span<const std::uint16_t> codes, unsigned bits, std::span<std::byte> bytes) {
  ensure(bytes.size() == packed_bytes(codes.size(), bits),
         "pack_bits: the bytes must fit the codes", bytes.size(), codes.size(), bits);
  THINREDUCE_CALL(pack_bits)(codes, bits, bytes);
}

std::uint16_t unpack_bits(std::span<const std::byte> bytes, unsigned bits,
                          std::span<std::uint16_t> codes) {
  ensure(bytes.size() == packed_bytes(codes.size(), bits),
         "unpack_bits: the bytes must fit the codes", bytes.size(), codes.size(), bits);
  return THINREDUCE_CALL(unpack_bits)(bytes, bits, codes);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
