// The payload of the FFT method; docs/methods.md specifies it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/kernels/range_float.h"

namespace thinreduce {

// Larger coefficients are not sent: sums over any number of ranks and the inverse transform of any
// block stay far below the largest float, so nothing a peer sends can become Inf or NaN.
inline constexpr float kLargestCoefficient = 0x1p100f;

// What a rank keeps of its spectrum. kernels/units.h says which unit has which bit.
struct SparseSpectrum {
  std::vector<std::uint64_t> bitmap;
  kernels::RangeFloat format;
  std::vector<std::uint16_t> codes;  // two a unit that is kept, in the order of the units
  float kept_energy = 1;             // the kept units' share of the spectrum's energy, 0 to 1
  bool overflow = false;             // the spectrum was not finite: every rank is to refuse it
};

// The longest payload of a spectrum with `words` words of bitmap and codes of `bits` bits.
[[nodiscard]] std::size_t fft_payload_limit(std::size_t words, int bits);

// Replaces `payload`. Nothing kept makes an empty one.
void write_fft_payload(const SparseSpectrum& spectrum, std::vector<std::byte>& payload);

// Replaces all of `spectrum` but the length of its bitmap, which says what to expect; `bits` does
// too. Throws Error{bad_frame} when anything is wrong. Whatever the bytes are, what comes out has
// two codes for each bit, and all of them are finite values of its format.
void read_fft_payload(std::span<const std::byte> payload, int rank, int bits,
                      SparseSpectrum& spectrum);

}  // namespace thinreduce
