#include "apps/synthetic.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "thinreduce/wire/mix.h"

namespace thinreduce::apps {
namespace {

// Returns the sum of four uniform numbers, close to normal; mean 0, variance 1.
float bell(std::uint64_t bits) {
  const auto sum = static_cast<std::int32_t>((bits & 0xFFFFU) + ((bits >> 16U) & 0xFFFFU) +
                                             ((bits >> 32U) & 0xFFFFU) + (bits >> 48U));
  constexpr float kDeviation = 37837.0F;  // sqrt(4 * 65536^2 / 12)
  return static_cast<float>(sum - 2 * 65535) / kDeviation;
}

constexpr std::size_t kRow = 1024;

// Rows of one layer differ by a factor of up to 8; the typical gradient is about 1e-3.
float row_magnitude(std::size_t start) {
  return std::ldexp(1e-3F, -static_cast<int>(mix(start) % 4));
}

}  // namespace

void synthetic_gradient(GradientKey key, std::span<float> values) {
  const std::uint64_t common = mix(key.step * 2 + 1);
  const std::uint64_t own = mix(common + static_cast<std::uint64_t>(key.rank) + 1);
  for (std::size_t start = 0; start < values.size(); start += kRow) {
    const float magnitude = row_magnitude(start);
    const std::size_t end = std::min(values.size(), start + kRow);
    for (std::size_t i = start; i < end; ++i) {
      values[i] = magnitude * (bell(mix(common ^ i)) + bell(mix(own ^ i)));
    }
  }
}

void synthetic_second_moment(std::span<float> values) {
  // A gradient adds two numbers of variance 1, so its mean square is 2.
  constexpr float kMax = 128 * 2;
  for (std::size_t start = 0; start < values.size(); start += kRow) {
    const float magnitude = row_magnitude(start);
    const std::size_t end = std::min(values.size(), start + kRow);
    for (std::size_t i = start; i < end; ++i) {
      const auto uniform =
          static_cast<float>(mix(~static_cast<std::uint64_t>(i)) >> 40U) * 0x1p-24F;
      values[i] = magnitude * magnitude * kMax * uniform;
    }
  }
}

}  // namespace thinreduce::apps
