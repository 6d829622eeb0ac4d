// The grid on which a bucket is quantized: blocks of elements, each with a step of its own that
// follows from the block's largest magnitude, and 2M + 1 points, M on each side of zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "thinreduce/kernels/random.h"

namespace thinreduce {

struct BlockQuantizer {
  std::size_t elements = 0;  // of the bucket
  std::size_t block = 1;     // elements a block; the last may have fewer
  std::uint32_t most = 1;    // M
  float gain = 1;            // values are multiplied by it when they are quantized

  [[nodiscard]] std::size_t blocks() const { return (elements + block - 1) / block; }
  [[nodiscard]] std::uint32_t symbols() const { return 2 * most + 1; }

  // The step of a block: largest/M and a little more, so that rounding never leaves the grid; never
  // so small that 1/step overflows. 0 for a block of zeros.
  [[nodiscard]] float step(float largest) const;

  // Calls work(block, offset, count) for each part of the elements [first, first + count) that lies
  // in one block.
  template <typename Work>
  void for_each_block(std::size_t first, std::size_t count, Work&& work) const {
    for (std::size_t at = 0; at < count;) {
      const std::size_t index = (first + at) / block;
      const std::size_t run = std::min(count - at, (index + 1) * block - (first + at));
      work(index, at, run);
      at += run;
    }
  }

  // Elements [first, first + count), for the functions below. `largest` is one value a block of the
  // whole bucket.

  // Sets `largest` of the blocks that begin in the range, which must end with a block. With `clip`
  // above 0, to at most that many root mean squares of the block.
  void measure(std::span<const float> values, std::size_t first, double clip,
               std::span<float> largest) const;

  // The same for elements [first, first + count) of the whole bucket, for one who works his way
  // through it: blocks are measured as a whole where they begin.
  void measure_from(std::span<const float> bucket, std::size_t first, std::size_t count,
                    double clip, std::span<float> largest) const;
  // Sets `largest` of those blocks to their 2-norm, for methods that scale by it.
  void measure_norm_from(std::span<const float> bucket, std::size_t first, std::size_t count,
                         std::span<float> norms) const;

  // Codes 0 to 2M; values beyond the grid get its last point.
  void quantize(std::span<const float> values, std::size_t first, std::span<const float> largest,
                kernels::RandomKey key, std::span<std::uint32_t> codes) const;

  // What codes stand for: the sum over `sum.keys` ranks, times `sum.share`.
  struct Sum {
    std::span<const kernels::RandomKey> keys;  // dither to subtract
    std::uint32_t ranks = 1;                   // in the sum
    float share = 1;
  };
  // The result is finite, whatever the codes; see kernels::dequantize for their range.
  void dequantize(std::span<const std::uint32_t> codes, std::size_t first,
                  std::span<const float> largest, const Sum& sum, std::span<float> values) const;

  // Of the whole bucket: leaves in `values` what lies beyond the grid.
  void keep_clipped(std::span<float> values, std::span<const float> largest) const;

 private:
  struct Elements {
    std::size_t first = 0;
    std::size_t end = 0;
  };
  // Of the blocks that begin in a range, all elements.
  [[nodiscard]] Elements beginning_in(std::size_t first, std::size_t count) const;
};

}  // namespace thinreduce
