// The encoding loop of the entropy coder (wire/entropy.h): eight rANS states take turns at the
// groups of a message, group i at state i % 8. docs/wire-format.md specifies the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinreduce::kernels {

// This many independent chains keep a core busy.
inline constexpr std::size_t kRansWays = 8;
// Frequencies are fractions of 2^12: the decoder's table fits in the L1 cache, and the rounding
// costs far less than a hundredth of the size.
inline constexpr std::uint32_t kRansScaleBits = 12;
inline constexpr std::uint32_t kRansScale = 1u << kRansScaleBits;
// States stay in [2^15, 2^31) and read or emit 16 bits at a time.
inline constexpr std::uint32_t kRansMinState = 1u << 15;

using RansStates = std::array<std::uint32_t, kRansWays>;

// The constants that encode a group with a multiplication instead of a division: a state x becomes
// x + bias + (x * reciprocal >> 32 + shift) * complement.
struct alignas(16) RansEntry {
  std::uint32_t most = 0;  // from this state on, 16 bits are emitted first
  std::uint32_t reciprocal = 0;
  std::uint32_t bias = 0;
  std::uint32_t complement_and_shift = 0;  // 16 bits each, the complement in the low ones
};
// Returns the entry of a group with the frequency `count` of kRansScale, at least 1; `start` is the
// sum of the frequencies before it.
[[nodiscard]] RansEntry rans_entry(std::uint32_t start, std::uint32_t count);

// Encodes the groups backwards, the last one first, and writes the emitted words to the end of
// `words`, the first one last. Returns their number. `words` must have kRansRoom words more than
// there are groups; any of them may be overwritten.
inline constexpr std::size_t kRansRoom = 8;
[[nodiscard]] std::size_t rans_encode(std::span<const RansEntry, 256> entries,
                                      std::span<const std::uint8_t> groups, RansStates& states,
                                      std::span<std::uint16_t> words);

// The scalar definition of the function above.
namespace reference {
[[nodiscard]] std::size_t rans_encode(std::span<const RansEntry, 256> entries,
                                      std::span<const std::uint8_t> groups, RansStates& states,
                                      std::span<std::uint16_t> words);
}  // namespace reference

}  // namespace thinreduce::kernels
