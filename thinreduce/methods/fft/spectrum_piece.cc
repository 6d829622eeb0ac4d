#include "thinreduce/methods/fft/spectrum_piece.h"

#include <array>

#include "thinreduce/kernels/block_transform.h"

namespace thinreduce {

void SpectrumPiece::add_next(std::span<float> spectrum) {
  std::array<float, 2 * kStripPairs> values;  // of the kept pairs of one strip
  for (std::size_t first = 0; first < spectrum.size(); first += kStripFloats) {
    const std::size_t count = pairs_.counts[strip_++];
    kernels::dequantize(pairs_.head.format, std::span(pairs_.codes).subspan(2 * next_, 2 * count),
                        std::span(values).first(2 * count));
    const std::uint16_t* position = pairs_.positions.data() + next_;
    float* to = &spectrum[first];
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = kernels::pair_offset(position[i]);
      to[at] += values[2 * i];
      to[at + kernels::kBlockLanes] += values[2 * i + 1];
    }
    next_ += count;
  }
}

}  // namespace thinreduce
