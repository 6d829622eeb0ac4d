// Small codes in few bits. docs/wire-format.md specifies the layout.
//
// Codes form rows of 16. Each of the 16 columns is packed into its own 32-bit words, so that a
// vector packs whole rows without moving data between lanes, and 16 words, one per column, are
// stored together. The number of symbols decides what a word holds:
// - bits: codes of w = ceil(log2(symbols)) bits, lowest first, continued in the next word;
// - digits (3 and 9 symbols, where bits would waste a fifth): two 16-bit halves, lower half first,
// of
//   10 digits to base 3 or 5 digits to base 9, least significant digit first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

inline constexpr std::size_t kPackRow = 16;
// Codes that are packed at a time: a multiple of this leaves no unused bits in any packing.
inline constexpr std::size_t kCodesPerPack = 160 * kPackRow;
// Returns `codes` rounded up to whole rows.
[[nodiscard]] constexpr std::size_t whole_rows(std::size_t codes) {
  return (codes + kPackRow - 1) / kPackRow * kPackRow;
}
inline constexpr std::uint32_t kMaxPackedSymbols = 1u << 16;

struct Packing {
  std::uint32_t bits = 0;    // bits per code; 0: digits
  std::uint32_t radix = 0;   // base of the digits
  std::uint32_t digits = 0;  // digits per 16 bits

  [[nodiscard]] static Packing of(std::uint32_t symbols);
  // Returns the packed size of `codes` codes.
  [[nodiscard]] std::size_t bytes(std::size_t codes) const;
};

// Packs whole rows of codes, all below the packing's symbols; `out` must have bytes(codes.size())
// bytes.
void pack(std::span<const std::uint32_t> codes, const Packing& packing, std::span<std::byte> out);

// Unpacks untrusted bytes and returns the largest code, which may be too large: the caller must
// check it. Bytes that pack() never writes count as the largest possible code.
[[nodiscard]] std::uint32_t unpack(std::span<const std::byte> in, const Packing& packing,
                                   std::span<std::uint32_t> codes);

// sum[i] += codes[i]
void add_codes(std::span<std::uint32_t> sum, std::span<const std::uint32_t> codes);

// Scalar definitions, on whole groups of rows as the public functions cut them.
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
