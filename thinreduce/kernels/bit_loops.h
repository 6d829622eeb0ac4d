// Loops over single bits. They do not profit from vectors, but from the scalar instructions of
// newer targets: scattering and gathering bits.
//
// Bit streams start with the lowest bit of the first byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

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
void pack_bits(std::span<const std::uint16_t> codes, unsigned bits, std::span<std::byte> bytes);
std::uint16_t unpack_bits(std::span<const std::byte> bytes, unsigned bits,
                          std::span<std::uint16_t> codes);
}  // namespace reference

}  // namespace thinreduce::kernels
