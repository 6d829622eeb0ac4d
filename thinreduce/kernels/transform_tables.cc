#include <bit>
#include <cmath>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/block_transform.h"
#include "thinreduce/kernels/trigonometry.h"

namespace thinreduce::kernels {
namespace {

// Returns the index at which the radix-4 passes (and a last one of radix 2 if m is not a power of
// 4) leave frequency k of m.
std::size_t reversed(std::size_t k, std::size_t m) {
  return m <= 2 ? k : k % 4 * (m / 4) + reversed(k / 4, m / 4);
}

void append(std::vector<float>& table, CosSin value, double scale) {
  table.push_back(static_cast<float>(value.cos * scale));
  table.push_back(static_cast<float>(value.sin * scale));
}

}  // namespace

TransformTables::TransformTables(std::size_t block_length, Transform kind)
    : length(block_length), transform(kind) {
  ensure(std::has_single_bit(length) && length >= kMinBlock && length <= kMaxBlock,
         "a block's length must be a power of two from 64 to 16384", length);
  const std::size_t n = length;
  const std::size_t m = n / 2;
  const double half = std::sqrt(0.5 / static_cast<double>(n));
  scale_ends = static_cast<float>(std::sqrt(1.0 / static_cast<double>(n)));
  scale_half = static_cast<float>(half);
  passes.resize(static_cast<std::size_t>(std::countr_zero(m)) + 1);
  for (std::size_t size = m; size >= 4; size /= 4) {
    passes[static_cast<std::size_t>(std::countr_zero(size))] = twiddles.size();
    for (std::size_t j = 0; j < size / 4; ++j) {
      for (std::size_t power = 1; power <= 3; ++power) {
        append(twiddles, turn(j * power * (n / size), n), 1);
      }
    }
  }
  for (std::size_t k = 0; k <= n / 4; ++k) append(rotations, turn(k, n), half);
  if (kind == Transform::dct) {
    for (std::size_t k = 0; k <= m; ++k) append(quarter_turns, turn(k, 4 * n), 1);
  }
  for (std::size_t k = 0; k < m; ++k) places.push_back(static_cast<std::uint32_t>(reversed(k, m)));
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t place =
        kind == Transform::fft ? i : (i % 2 == 0 ? i / 2 : n - 1 - (i - 1) / 2);
    order.push_back(static_cast<std::uint32_t>(place));
  }
}

}  // namespace thinreduce::kernels
