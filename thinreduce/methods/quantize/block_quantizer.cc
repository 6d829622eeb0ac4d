#include "thinreduce/methods/quantize/block_quantizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/quantize/dither.h"

namespace thinreduce {
namespace {

// Values below a millionth of this are nothing beside any weight; its inverse and its 2^-16th part
// are still normal numbers.
constexpr float kLeastStep = 0x1p-100f;
constexpr float kMostStep = std::numeric_limits<float>::max();
// By how much a step is larger than largest/M: more than the roundings on the way can make up for
// with M up to 127, and far less than anything that could be noticed.
constexpr float kMargin = 1 + 0x1p-20f;

// In an order that does not depend on the vector width.
double square_sum(std::span<const float> values) {
  std::array<double, 8> sums{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    sums[i % 8] += static_cast<double>(values[i]) * values[i];
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace

float BlockQuantizer::step(float largest) const {
  if (largest == 0) return 0;
  return std::clamp(largest / static_cast<float>(most) * kMargin, kLeastStep, kMostStep);
}

void BlockQuantizer::measure(std::span<const float> values, std::size_t first, double clip,
                             std::span<float> largest) const {
  ensure(first % block == 0, "a measured run must start with a block", first, block);
  for_each_block(first, values.size(), [&](std::size_t index, std::size_t at, std::size_t run) {
    const auto part = values.subspan(at, run);
    largest[index] = kernels::largest_magnitude(part);
    if (clip > 0 && std::isfinite(largest[index])) {
      const double limit = clip * std::sqrt(square_sum(part) / static_cast<double>(run));
      if (limit < largest[index]) largest[index] = static_cast<float>(limit);
    }
  });
}

BlockQuantizer::Elements BlockQuantizer::beginning_in(std::size_t first, std::size_t count) const {
  const auto up = [&](std::size_t element) { return (element + block - 1) / block * block; };
  return {std::min(up(first), elements), std::min(up(first + count), elements)};
}

void BlockQuantizer::measure_from(std::span<const float> bucket, std::size_t first,
                                  std::size_t count, double clip, std::span<float> largest) const {
  const Elements part = beginning_in(first, count);
  if (part.first >= part.end) return;
  measure(bucket.subspan(part.first, part.end - part.first), part.first, clip, largest);
}

void BlockQuantizer::measure_norm_from(std::span<const float> bucket, std::size_t first,
                                       std::size_t count, std::span<float> norms) const {
  const Elements part = beginning_in(first, count);
  if (part.first >= part.end) return;
  const auto values = bucket.subspan(part.first, part.end - part.first);
  for_each_block(part.first, values.size(),
                 [&](std::size_t index, std::size_t at, std::size_t run) {
                   const double norm = std::sqrt(square_sum(values.subspan(at, run)));
                   norms[index] = static_cast<float>(std::min<double>(norm, kMostStep));
                 });
}

void BlockQuantizer::quantize(std::span<const float> values, std::size_t first,
                              std::span<const float> largest, kernels::RandomKey key,
                              std::span<std::uint32_t> codes) const {
  for_each_block(first, values.size(), [&](std::size_t index, std::size_t at, std::size_t run) {
    const float size = step(largest[index]);
    kernels::quantize(values.subspan(at, run),
                      {.inverse = size == 0 ? 0 : gain / size,
                       .most = most,
                       .key = key,
                       .first = static_cast<std::uint32_t>(first + at)},
                      codes.subspan(at, run));
  });
}

void BlockQuantizer::dequantize(std::span<const std::uint32_t> codes, std::size_t first,
                                std::span<const float> largest, const Sum& sum,
                                std::span<float> values) const {
  for_each_block(first, values.size(), [&](std::size_t index, std::size_t at, std::size_t run) {
    const auto out = values.subspan(at, run);
    const float size = step(largest[index]);
    if (size == 0) {
      std::fill(out.begin(), out.end(), 0.0f);
      return;
    }
    kernels::dequantize(codes.subspan(at, run),
                        {.step = size * sum.share,
                         .zero = sum.ranks * most,
                         .keys = sum.keys,
                         .first = static_cast<std::uint32_t>(first + at)},
                        out);
    // Codes that no quantizer made are at most 2^16 points away from zero.
    if (size >= kMostStep / 65536 / static_cast<float>(sum.ranks)) {
      for (float& value : out) value = std::clamp(value, -kMostStep, kMostStep);
    }
  });
}

void BlockQuantizer::keep_clipped(std::span<float> values, std::span<const float> largest) const {
  for_each_block(0, values.size(), [&](std::size_t index, std::size_t at, std::size_t run) {
    const float limit = largest[index];
    for (float& value : values.subspan(at, run)) value -= std::clamp(value, -limit, limit);
  });
}

}  // namespace thinreduce
