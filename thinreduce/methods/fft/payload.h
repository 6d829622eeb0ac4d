// The payload of the FFT method, one for each piece of a bucket; docs/methods/fft.md specifies it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/methods/fft/range_float.h"
#include "thinreduce/methods/fft/units.h"

namespace thinreduce {

// Larger coefficients are not sent: sums over any number of ranks and the inverse transform of any
// block stay far below the largest float, so nothing a peer sends can become Inf or NaN.
inline constexpr float kLargestCoefficient = 0x1p100f;

// The words of a piece's bitmap are cut into segments; a segment has one way to write its
// positions. Short enough to follow a density that changes, long enough that its two bytes do not
// count.
inline constexpr std::size_t kSegmentWords = 32;
inline constexpr std::size_t kSegmentUnits = kSegmentWords * kernels::kUnitsPerWord;

// What the payloads of all pieces of a rank have in common.
struct SpectrumHead {
  kernels::RangeFloat format;
  float kept_energy = 1;  // the kept units' share of the spectrum's energy, 0 to 1
  bool overflow = false;  // the spectrum was not finite: every rank is to refuse it
};

// A piece of what a rank keeps of its spectrum, to be written: kernels/units.h says which unit has
// which bit; two codes a unit that is kept, in the order of the units.
struct KeptUnits {
  std::span<const std::uint64_t> bitmap;
  std::span<const std::uint16_t> codes;
};

// The same piece as it was read: lists, because bits would have to be searched for again.
struct SparseSpectrum {
  SpectrumHead head;
  std::vector<std::uint16_t> counts;     // of kept units, by segment
  std::vector<std::uint16_t> positions;  // of each kept unit in its segment, ascending
  std::vector<std::uint16_t> codes;      // two a kept unit
};

// What a reader expects.
struct PayloadShape {
  std::size_t words = 0;  // of the piece's bitmap
  int bits = 10;          // of a code
};

// The longest payload of that shape.
[[nodiscard]] std::size_t fft_payload_limit(const PayloadShape& shape);

// Replaces `payload`. Nothing kept makes an empty one.
void write_fft_payload(const SpectrumHead& head, const KeptUnits& units,
                       std::vector<std::byte>& payload);

// Replaces `spectrum`, which may be one of an earlier piece. Throws Error{bad_frame} when anything
// is wrong. Whatever the bytes are, what comes out has two codes for each position, all of them
// finite values of its format, and all positions are inside their segments.
void read_fft_payload(std::span<const std::byte> payload, const PayloadShape& shape, int rank,
                      SparseSpectrum& spectrum);

}  // namespace thinreduce
