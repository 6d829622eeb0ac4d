// Small codes in few bits. docs/wire-format.md specifies the layout.
//
// Codes are taken as rows of 16. Each of the 16 columns is packed into 32-bit words of its own, so
// that a vector packs whole rows without moving anything between lanes, and 16 words, one a column,
// are stored together. In a word there are, by number of symbols:
// - bits: codes of w = ceil(log2(symbols)) bits, lowest first, continued in the next word;
// - digits (3 and 9 symbols, where bits would waste a fifth): two 16-bit halves of 10 or 5 digits
// to
//   the base 3 or 9, the first digit the least significant; the lower half comes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

inline constexpr std::size_t kPackRow = 16;
// A multiple of this many codes is packed without unused bits, whatever the packing.
inline constexpr std::size_t kPackUnit = 160 * kPackRow;
// So many codes, and as many more as fill the last row.
[[nodiscard]] constexpr std::size_t whole_rows(std::size_t codes) {
  return (codes + kPackRow - 1) / kPackRow * kPackRow;
}
inline constexpr std::uint32_t kMostPackedSymbols = 1u << 16;

struct Packing {
  std::uint32_t bits = 0;    // of a code; 0: digits
  std::uint32_t radix = 0;   // of the digits
  std::uint32_t digits = 0;  // in 16 bits

  [[nodiscard]] static Packing of(std::uint32_t symbols);
  // For `codes` codes.
  [[nodiscard]] std::size_t bytes(std::size_t codes) const;
};

// A multiple of kPackRow codes, all below the packing's symbols; out.size() = bytes(codes.size()).
void pack(std::span<const std::uint32_t> codes, const Packing& packing, std::span<std::byte> out);

// The opposite. Returns the largest code, which can be too large when the bytes are not from
// pack(); anything that no pack() writes counts as the largest possible code.
[[nodiscard]] std::uint32_t unpack(std::span<const std::byte> in, const Packing& packing,
                                   std::span<std::uint32_t> codes);

// sum[i] += codes[i]
void add_codes(std::span<std::uint32_t> sum, std::span<const std::uint32_t> codes);

// Whole groups, as the public functions cut them.
namespace reference {
void pack_bits(const std::uint32_t* codes, std::size_t rows, std::uint32_t bits, std::byte* out);
std::uint32_t unpack_bits(const std::byte* in, std::size_t rows, std::uint32_t bits,
                          std::uint32_t* codes);
void pack_digits(const std::uint32_t* codes, std::size_t words, const Packing& packing,
                 std::byte* out);
std::uint32_t unpack_digits(const std::byte* in, std::size_t words, const Packing& packing,
                            std::uint32_t* codes);
void add_codes(std::span<std::uint32_t> sum, std::span<const std::uint32_t> codes);
}  // namespace reference

}  // namespace thinreduce::kernels
