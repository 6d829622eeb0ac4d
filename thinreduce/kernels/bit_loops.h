// Loops over single bits. They do not profit from vectors, but from the scalar instructions of
// newer targets: counting zeros, scattering and gathering bits.
//
// Bit streams start with the lowest bit of the first byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

// Room that list_bits() needs past the last place.
inline constexpr std::size_t kListSlack = 8;

// Writes the places of all set bits in ascending order, counted from words[0], and returns their
// number. There must be at most 1024 words, and room in `places` for all bits and kListSlack more.
std::size_t list_bits(std::span<const std::uint64_t> words, std::span<std::uint16_t> places);

// Returns the bytes of `count` numbers of `bits` bits each.
[[nodiscard]] constexpr std::size_t packed_bytes(std::size_t count, unsigned bits) {
  return (count * bits + 7) / 8;
}
// Pack and unpack codes below 2^bits, 1 <= bits <= 16, without gaps. `bytes` must have
// packed_bytes(codes.size(), bits) bytes; the last is filled with zeros. unpack_bits() returns the
// largest code.
void pack_bits(std::span<const std::uint16_t> codes, unsigned bits, std::span<std::byte> bytes);
std::uint16_t unpack_bits(std::span<const std::byte> bytes, unsigned bits,
                          std::span<std::uint16_t> codes);

// The definition of the results above.
namespace reference {
std::size_t list_bits(std::span<const std::uint64_t> words, std::span<std::uint16_t> places);
void pack_bits(std::span<const std::uint16_t> codes, unsigned bits, std::span<std::byte> bytes);
std::uint16_t unpack_bits(std::span<const std::byte> bytes, unsigned bits,
                          std::span<std::uint16_t> codes);
}  // namespace reference

}  // namespace thinreduce::kernels
