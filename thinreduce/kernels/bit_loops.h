// Loops over single bits. They gain nothing from vectors, but much from the scalar instructions
// that come with newer targets: counting zeros, scattering and gathering bits.
//
// Streams of bits start with the lowest bit of the first byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

// Room that list_bits() needs behind the last place.
inline constexpr std::size_t kListSlack = 8;

// Writes the places of all bits that are set, in ascending order and counted from words[0], and
// returns how many. At most 1024 words; `places` has room for all bits and kListSlack more.
std::size_t list_bits(std::span<const std::uint64_t> words, std::span<std::uint16_t> places);

// Rice codes from bit `at` of `bytes` on: a number of zeros, a one, and `low` bits, together a gap.
// A position is one behind the last plus the gap; the first is the gap.
struct RiceCodes {
  std::span<const std::byte> bytes;  // behind their end there are zeros
  std::uint64_t at = 0;
  unsigned low = 0;       // at most 16
  std::size_t limit = 0;  // positions are below this; at most 65536
};
inline constexpr std::uint64_t kBadPosition = ~std::uint64_t{0};
// Fills `positions`. Returns the bit behind the last code, or kBadPosition.
std::uint64_t rice_positions(const RiceCodes& codes, std::span<std::uint16_t> positions);

// Bytes that `count` numbers of `bits` bits take.
[[nodiscard]] constexpr std::size_t packed_bytes(std::size_t count, unsigned bits) {
  return (count * bits + 7) / 8;
}
// Codes below 2^bits, bits from 1 to 16, one after another; `bytes` has packed_bytes(codes, bits),
// the last filled up with zeros. unpack_bits() returns the largest code.
void pack_bits(std::span<const std::uint16_t> codes, unsigned bits, std::span<std::byte> bytes);
std::uint16_t unpack_bits(std::span<const std::byte> bytes, unsigned bits,
                          std::span<std::uint16_t> codes);

// What defines the results above.
namespace reference {
std::size_t list_bits(std::span<const std::uint64_t> words, std::span<std::uint16_t> places);
// The gap at bit `at`, which moves behind it; above the limit whatever it is.
std::uint64_t rice_gap(const RiceCodes& codes, std::uint64_t& at);
std::uint64_t rice_positions(const RiceCodes& codes, std::span<std::uint16_t> positions);
void pack_bits(std::span<const std::uint16_t> codes, unsigned bits, std::span<std::byte> bytes);
std::uint16_t unpack_bits(std::span<const std::byte> bytes, unsigned bits,
                          std::span<std::uint16_t> codes);
}  // namespace reference

}  // namespace thinreduce::kernels
