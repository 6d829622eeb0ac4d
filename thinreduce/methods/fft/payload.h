// The payload of the fft method, one per piece of a bucket; docs/methods/fft.md specifies it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/methods/fft/pairs.h"
#include "thinreduce/methods/fft/range_float.h"

namespace thinreduce {

// Larger coefficients are clipped by the sender and refused by the reader: sums over any number of
// ranks and their inverse transforms then stay far below the largest float, so no payload can cause
// Inf or NaN.
inline constexpr float kMaxCoefficient = 0x1p100f;

// A piece's bitmap is cut into strips of this many words; each strip chooses an encoding of its
// positions. They are short enough to follow a changing density, and long enough that the two bytes
// per strip hardly count.
inline constexpr std::size_t kStripWords = 32;
inline constexpr std::size_t kStripPairs = kStripWords * kernels::kPairsPerWord;

// The fields that all payloads of a rank share in one step.
struct SpectrumHead {
  kernels::RangeFloat format;
  float kept_energy = 1;  // fraction of the spectrum's energy in the kept pairs, 0 to 1
  bool overflow = false;  // the spectrum was not finite: readers must refuse the payload
};

// The kept pairs of one piece, for writing. Its words (pairs.h) are cut into runs, which must be
// strips or whole parts of them.
struct KeptPairs {
  std::size_t words = 0;
  std::size_t run_words = kStripWords;
  std::span<const std::size_t>
      firsts;  // per run and at the end: index of its first pair, any start
  std::span<const std::uint16_t> positions;  // per pair: its index in its run, ascending
  std::span<const std::uint16_t> codes;      // two per pair
};

// The kept pairs of one piece, as read. Lists instead of a bitmap, because every rank's pairs are
// visited once more.
struct SparseSpectrum {
  SpectrumHead head;
  std::vector<std::uint16_t> counts;     // kept pairs per strip
  std::vector<std::uint16_t> positions;  // per kept pair: its index in the strip, ascending
  std::vector<std::uint16_t> codes;      // two per kept pair
};

// The shape of the payload that a reader expects.
struct PayloadShape {
  std::size_t words = 0;  // words of the piece's bitmap
  int bits = 10;          // bits per code
};

// Returns the maximum size of a payload in bytes.
[[nodiscard]] std::size_t fft_payload_limit(const PayloadShape& shape);

// Replaces `payload`; it becomes empty if no pair is kept.
void write_fft_payload(const SpectrumHead& head, const KeptPairs& pairs,
                       std::vector<std::byte>& payload);

// Reads an untrusted payload and replaces `spectrum`, reusing its memory. Throws Error{bad_frame}
// for anything that write_fft_payload() does not write. On return there are two codes per position,
// all codes stand for finite values, and all positions lie inside their strips.
void read_fft_payload(std::span<const std::byte> payload, const PayloadShape& shape, int rank,
                      SparseSpectrum& spectrum);

}  // namespace thinreduce
