// The payload of one piece of a bucket, read and added to spectra.
#pragma once

#include <cstddef>
#include <span>

#include "thinreduce/methods/fft/payload.h"

namespace thinreduce {

inline constexpr std::size_t kStripFloats = 2 * kStripPairs;

class SpectrumPiece {
 public:
  // Reads a payload that `rank` has sent; see read_fft_payload().
  void read(std::span<const std::byte> payload, const PayloadShape& shape, int rank) {
    read_fft_payload(payload, shape, rank, pairs_);
    strip_ = next_ = 0;
  }
  [[nodiscard]] float kept_energy() const { return pairs_.head.kept_energy; }

  // Adds the next pairs of the piece to `spectrum`, which must be whole strips or the end of the
  // piece.
  void add_next(std::span<float> spectrum);

 private:
  SparseSpectrum pairs_;
  std::size_t strip_ = 0;  // the next one
  std::size_t next_ = 0;   // index of the next pair
};

}  // namespace thinreduce
