// Quantizes a bucket in blocks of elements. Each block has its own scale, from which its step size
// follows, and 2M + 1 levels, M on each side of zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinreduce/collective/workers.h"
#include "thinreduce/kernels/random.h"
#include "thinreduce/methods/quantize/block_grid.h"

namespace thinreduce {

struct BlockQuantizer {
  BlockGrid grid;                     // of the bucket
  std::uint32_t levels_per_side = 1;  // M
  float gain = 1;                     // factor of the values when they are quantized
  std::size_t first_draw = 0;         // place of element 0 in the random streams

  [[nodiscard]] std::size_t elements() const { return grid.elements(); }
  [[nodiscard]] std::size_t blocks() const { return grid.blocks(); }
  [[nodiscard]] std::uint32_t symbols() const { return 2 * levels_per_side + 1; }

  // Returns the step size of a block: scale/M and a little more, so that dither never rounds beyond
  // the outermost level, and never so small that 1/step size overflows. 0 for a block of zeros.
  [[nodiscard]] float step_size(float scale) const;

  // The functions below work on elements from `first` on. `scales` has one value per block of the
  // whole bucket.

  // Sets the scales of the blocks in the range, which must start and end with a block, to their
  // largest magnitude. With `clip` above 0, a scale is at most that many root mean squares.
  void measure(std::span<const float> values, std::size_t first, double clip,
               std::span<float> scales) const;

  // The same for all blocks that begin in elements [first, first + count) of the bucket. A caller
  // that goes through the bucket in pieces so measures every block once and as a whole.
  void measure_from(std::span<const float> bucket, std::size_t first, std::size_t count,
                    double clip, std::span<float> scales) const;
  // Sets the scales of those blocks to their 2-norm instead.
  void measure_norm_from(std::span<const float> bucket, std::size_t first, std::size_t count,
                         std::span<float> scales) const;

  // Measures how well codes describe their values: sums over elements from `first` on, which must
  // lie in one block, of value * level and level^2, where the level of a code is code - M.
  struct Fit {
    double matched = 0;
    double energy = 0;
  };
  void add_fit(std::span<const float> values, std::span<const std::uint32_t> codes, Fit& fit) const;
  // Returns the scale with which the levels of a block come nearest to its values; `scale` if all
  // levels are 0.
  [[nodiscard]] float fitted_scale(const Fit& fit, float scale) const;

  // Writes codes from 0 to 2M; values beyond the outermost level get that level. A block whose
  // scale is not finite gets the code of 0: readers refuse such a scale.
  void quantize(std::span<const float> values, std::size_t first, std::span<const float> scales,
                kernels::RandomKey key, std::span<std::uint32_t> codes) const;

  // Describes codes that are summed over several ranks.
  struct Sum {
    std::span<const kernels::RandomKey> keys;  // streams of the dither to subtract
    std::uint32_t ranks = 1;                   // number of ranks in the sum
    float factor = 1;                          // the decoded values are multiplied by it
  };
  // Decodes codes. The result is finite, whatever the codes; see kernels::dequantize for their
  // range.
  void dequantize(std::span<const std::uint32_t> codes, std::size_t first,
                  std::span<const float> scales, const Sum& sum, std::span<float> values) const;

  // Subtracts from a whole bucket the part within the scales, so that the clipped part is left.
  void keep_clipped(std::span<float> values, std::span<const float> scales,
                    Workers workers = {}) const;

  // Calls work(first, count, thread) for runs of whole blocks, on all threads.
  template <typename Work>
  void share_blocks(Workers workers, const Work& work) const {
    const std::size_t blocks_per_run = (kFloatsPerBlock + grid.block() - 1) / grid.block();
    workers.for_runs(elements(), blocks_per_run * grid.block(), work);
  }

 private:
  struct Elements {
    std::size_t first = 0;
    std::size_t end = 0;
  };
  // Returns the elements of all blocks that begin in a range.
  [[nodiscard]] Elements beginning_in(std::size_t first, std::size_t count) const;
};

}  // namespace thinreduce
