#include "thinreduce/methods/quantize/block_quantizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/quantize/dither.h"

namespace thinreduce {
namespace {

// Values below a millionth of this are negligible beside any weight; its inverse and its 2^-16th
// part are still normal numbers.
constexpr float kMinStepSize = 0x1p-100f;
constexpr float kMaxStepSize = std::numeric_limits<float>::max();
// Factor of the step size over scale/M: more than all rounding errors with M up to 127, and far too
// little to be noticed.
constexpr float kMargin = 1 + 0x1p-20f;

}  // namespace

float BlockQuantizer::step_size(float scale) const {
  if (scale == 0) return 0;
  return std::clamp(scale / static_cast<float>(levels_per_side) * kMargin, kMinStepSize,
                    kMaxStepSize);
}

void BlockQuantizer::measure(std::span<const float> values, std::size_t first, double clip,
                             std::span<float> scales) const {
  ensure(grid.begins_at(first), "a measured run must start with a block", first, grid.block());
  grid.for_each_block(
      first, values.size(), [&](std::size_t index, std::size_t at, std::size_t run) {
        const auto part = values.subspan(at, run);
        scales[index] = kernels::largest_magnitude(part);
        if (clip > 0 && std::isfinite(scales[index])) {
          const double limit =
              clip * std::sqrt(kernels::square_sum(part) / static_cast<double>(run));
          if (limit < scales[index]) scales[index] = static_cast<float>(limit);
        }
      });
}

BlockQuantizer::Elements BlockQuantizer::beginning_in(std::size_t first, std::size_t count) const {
  return {grid.next_begin(first), grid.next_begin(first + count)};
}

void BlockQuantizer::measure_from(std::span<const float> bucket, std::size_t first,
                                  std::size_t count, double clip, std::span<float> scales) const {
  const Elements part = beginning_in(first, count);
  if (part.first >= part.end) return;
  measure(bucket.subspan(part.first, part.end - part.first), part.first, clip, scales);
}

void BlockQuantizer::measure_norm_from(std::span<const float> bucket, std::size_t first,
                                       std::size_t count, std::span<float> scales) const {
  const Elements part = beginning_in(first, count);
  if (part.first >= part.end) return;
  const auto values = bucket.subspan(part.first, part.end - part.first);
  grid.for_each_block(
      part.first, values.size(), [&](std::size_t index, std::size_t at, std::size_t run) {
        const double norm = std::sqrt(kernels::square_sum(values.subspan(at, run)));
        // Only Inf and NaN have no finite sum; readers must see them in the scale.
        scales[index] = std::isfinite(norm)
                            ? static_cast<float>(std::min<double>(norm, kMaxStepSize))
                            : std::numeric_limits<float>::infinity();
      });
}

// Adds in double and in order: the scale goes to all ranks, and must not depend on the CPU.
void BlockQuantizer::add_fit(std::span<const float> values, std::span<const std::uint32_t> codes,
                             Fit& fit) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double level = static_cast<double>(codes[i]) - static_cast<double>(levels_per_side);
    fit.matched += values[i] * level;
    fit.energy += level * level;
  }
}

float BlockQuantizer::fitted_scale(const Fit& fit, float scale) const {
  if (fit.energy == 0 || !std::isfinite(scale)) return scale;
  const double size = std::max(0.0, fit.matched / fit.energy);
  const double fitted = size * static_cast<double>(levels_per_side) / kMargin;
  return static_cast<float>(std::min<double>(fitted, kMaxStepSize));
}

void BlockQuantizer::quantize(std::span<const float> values, std::size_t first,
                              std::span<const float> scales, kernels::RandomKey key,
                              std::span<std::uint32_t> codes) const {
  grid.for_each_block(
      first, values.size(), [&](std::size_t index, std::size_t at, std::size_t run) {
        if (!std::isfinite(scales[index])) {
          const auto zeros = codes.subspan(at, run);
          std::fill(zeros.begin(), zeros.end(), levels_per_side);
          return;
        }
        const float size = step_size(scales[index]);
        kernels::quantize(values.subspan(at, run),
                          {.inverse_step_size = size == 0 ? 0 : gain / size,
                           .levels_per_side = levels_per_side,
                           .key = key,
                           .first = static_cast<std::uint32_t>(first_draw + first + at)},
                          codes.subspan(at, run));
      });
}

void BlockQuantizer::dequantize(std::span<const std::uint32_t> codes, std::size_t first,
                                std::span<const float> scales, const Sum& sum,
                                std::span<float> values) const {
  grid.for_each_block(
      first, values.size(), [&](std::size_t index, std::size_t at, std::size_t run) {
        const auto out = values.subspan(at, run);
        const float size = step_size(scales[index]);
        if (size == 0) {
          std::fill(out.begin(), out.end(), 0.0f);
          return;
        }
        kernels::dequantize(codes.subspan(at, run),
                            {.step_size = size * sum.factor,
                             .zero = sum.ranks * levels_per_side,
                             .keys = sum.keys,
                             .first = static_cast<std::uint32_t>(first_draw + first + at)},
                            out);
        // Invalid codes are at most 2^16 levels away from zero.
        if (size >= kMaxStepSize / 65536 / static_cast<float>(sum.ranks)) {
          for (float& value : out) value = std::clamp(value, -kMaxStepSize, kMaxStepSize);
        }
      });
}

void BlockQuantizer::keep_clipped(std::span<float> values, std::span<const float> scales,
                                  Workers workers) const {
  share_blocks(workers, [&](std::size_t first, std::size_t count, std::size_t /*thread*/) {
    grid.for_each_block(first, count, [&](std::size_t index, std::size_t at, std::size_t run) {
      const float limit = scales[index];
      for (float& value : values.subspan(first + at, run)) {
        value -= std::clamp(value, -limit, limit);
      }
    });
  });
}

}  // namespace thinreduce
