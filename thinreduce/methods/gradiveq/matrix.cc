#include "thinreduce/methods/gradiveq/matrix.h"

#include <algorithm>
#include <utility>

#include "thinreduce/ensure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/methods/gradiveq/matrix.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, kColumnBlock>;

// Prefetches runs of memory, one cache line of each per step.
class Fetcher {
 public:
  explicit Fetcher(Ahead ahead) : ahead_(ahead), floats_(ahead.empty() ? 0 : ahead[0].size()) {}
  HWY_INLINE void step() {
    if (at_ >= floats_) return;
    // Into the second level of the cache: the first is full of the matrix.
    for (const auto run : ahead_) __builtin_prefetch(run.data() + at_, 0, 2);
    at_ += kLineFloats;
  }

 private:
  static constexpr std::size_t kLineFloats = 16;
  const Ahead ahead_;
  const std::size_t floats_;
  std::size_t at_ = 0;
};

// Stores the sums of the columns from `column` on, without those of the padding.
template <typename Sum>
HWY_INLINE void store_columns(Sum sum, std::size_t column, std::size_t columns,
                              float* HWY_RESTRICT row) {
  const Floats d;
  if (column + hn::Lanes(d) <= columns) {
    hn::StoreU(sum, d, row + column);
  } else {
    float last[kColumnBlock];
    hn::StoreU(sum, d, last);
    std::copy_n(last, columns - column, row + column);
  }
}

// Multiplies input vectors by `kWide` vectors of columns. All sums stay in registers, so that a row
// of the matrix is loaded once for all inputs and an input once for all columns. The sums are
// parameters, because vectors of a length unknown to the compiler (SVE) can't be in an array: sum s
// belongs to input s / kWide and vector s % kWide of columns.
template <std::size_t kWide, std::size_t... s, typename... Sums>
HWY_INLINE void multiply_block(const Matrix& matrix, std::size_t column,
                               const float* HWY_RESTRICT in, float* HWY_RESTRICT out,
                               Fetcher& fetcher, std::index_sequence<s...> /*indices*/,
                               Sums... sums) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t stride = matrix.stride();
  const float* HWY_RESTRICT columns = matrix.values.data() + column;
  for (std::size_t row = 0; row < matrix.rows; ++row) {
    if (row % 2 == 0) fetcher.step();
    const float* const factors = columns + row * stride;
    const auto first = hn::LoadU(d, factors);
    const auto last = hn::LoadU(d, factors + (kWide - 1) * lanes);
    ((sums = hn::Add(sums, hn::Mul(hn::Set(d, in[s / kWide * matrix.rows + row]),
                                   s % kWide == 0 ? first : last))),
     ...);
  }
  (store_columns(sums, column + s % kWide * lanes, matrix.columns,
                 out + s / kWide * matrix.columns),
   ...);
}

template <std::size_t kWide, std::size_t... s>
HWY_INLINE void multiply_block(const Matrix& matrix, std::size_t column, const float* in,
                               float* out, Fetcher& fetcher, std::index_sequence<s...> indices) {
  static_assert(kWide == 1 || kWide == 2);
  multiply_block<kWide>(matrix, column, in, out, fetcher, indices,
                        (static_cast<void>(s), hn::Zero(Floats()))...);
}

template <std::size_t kVectors>
HWY_INLINE void multiply_rows(const Matrix& matrix, const float* in, float* out, Fetcher& fetcher) {
  const std::size_t lanes = hn::Lanes(Floats());
  std::size_t column = 0;
  for (; column + lanes < matrix.columns; column += 2 * lanes) {
    multiply_block<2>(matrix, column, in, out, fetcher, std::make_index_sequence<2 * kVectors>());
  }
  if (column < matrix.columns) {
    multiply_block<1>(matrix, column, in, out, fetcher, std::make_index_sequence<kVectors>());
  }
}

void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out, Ahead ahead) {
  const std::size_t count = out.size() / matrix.columns;
  Fetcher fetcher(ahead);
  // As many sums as there are registers for: 32 with AVX-512, else 16.
  constexpr std::size_t kVectors = HWY_TARGET <= HWY_AVX3 ? 8 : 4;
  std::size_t i = 0;
  for (; i + kVectors <= count; i += kVectors) {
    multiply_rows<kVectors>(matrix, in.data() + i * matrix.rows, out.data() + i * matrix.columns,
                            fetcher);
  }
  for (; i < count; ++i) {
    multiply_rows<1>(matrix, in.data() + i * matrix.rows, out.data() + i * matrix.columns, fetcher);
  }
}

void add_multiple(std::span<const float> a, std::span<const float> b, float factor,
                  std::span<float> out, float scale) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const auto factors = hn::Set(d, factor);
  const auto scales = hn::Set(d, scale);
  std::size_t i = 0;
  for (; i + lanes <= out.size(); i += lanes) {
    const auto multiple = hn::Mul(hn::LoadU(d, &b[i]), factors);
    hn::StoreU(hn::Mul(hn::Add(hn::LoadU(d, &a[i]), multiple), scales), d, &out[i]);
  }
  reference::add_multiple(a.subspan(i), b.subspan(i), factor, out.subspan(i), scale);
}

void deliver(const Delivery& delivery, std::span<float> kept, std::span<float> values) {
  const auto [rebuilt, mean, weight, scale] = delivery;
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const auto weights = hn::Set(d, weight);
  const auto scales = hn::Set(d, scale);
  const auto part = hn::Set(d, weight * scale);
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    const auto means = hn::LoadU(d, &mean[i]);
    if (!kept.empty()) {
      const auto centered = hn::Sub(hn::LoadU(d, &values[i]), hn::Mul(means, part));
      hn::StoreU(hn::Add(hn::LoadU(d, &kept[i]), centered), d, &kept[i]);
    }
    const auto sum = hn::Add(hn::LoadU(d, &rebuilt[i]), hn::Mul(means, weights));
    hn::StoreU(hn::Mul(sum, scales), d, &values[i]);
  }
  reference::deliver({rebuilt.subspan(i), mean.subspan(i), weight, scale},
                     kept.empty() ? kept : kept.subspan(i), values.subspan(i));
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

// Row by row over all columns at once: the same sums in the same order as column by column.
void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out,
              Ahead /*ahead*/) {
  std::fill(out.begin(), out.end(), 0.0f);
  for (std::size_t v = 0; v < out.size() / matrix.columns; ++v) {
    for (std::size_t row = 0; row < matrix.rows; ++row) {
      const float value = in[v * matrix.rows + row];
      for (std::size_t column = 0; column < matrix.columns; ++column) {
        out[v * matrix.columns + column] += value * matrix.values[row * matrix.stride() + column];
      }
    }
  }
}

void add_multiple(std::span<const float> a, std::span<const float> b, float factor,
                  std::span<float> out, float scale) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = (a[i] + b[i] * factor) * scale;
}

void deliver(const Delivery& delivery, std::span<float> kept, std::span<float> values) {
  const auto [rebuilt, mean, weight, scale] = delivery;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!kept.empty()) kept[i] += values[i] - mean[i] * (weight * scale);
    values[i] = (rebuilt[i] + mean[i] * weight) * scale;
  }
}

}  // namespace reference

THINREDUCE_KERNEL(multiply);
THINREDUCE_KERNEL(add_multiple);
THINREDUCE_KERNEL(deliver);

void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out, Ahead ahead) {
  ensure(matrix.columns > 0 && matrix.values.size() == matrix.rows * matrix.stride(),
         "multiply: a whole matrix with columns", matrix.values.size(), matrix.rows,
         matrix.columns);
  ensure(out.size() % matrix.columns == 0 && in.size() == out.size() / matrix.columns * matrix.rows,
         "multiply: as many vectors in as out", in.size(), matrix.rows, out.size(), matrix.columns);
  THINREDUCE_CALL(multiply)(matrix, in, out, ahead);
}

void add_multiple(std::span<const float> a, std::span<const float> b, float factor,
                  std::span<float> out, float scale) {
  ensure(a.size() == out.size() && b.size() == out.size(), "add_multiple: spans of the same length",
         a.size(), b.size(), out.size());
  THINREDUCE_CALL(add_multiple)(a, b, factor, out, scale);
}

void deliver(const Delivery& delivery, std::span<float> kept, std::span<float> values) {
  const std::size_t size = values.size();
  ensure(delivery.rebuilt.size() == size && delivery.mean.size() == size &&
             (kept.empty() || kept.size() == size),
         "deliver: spans of the same length", delivery.rebuilt.size(), delivery.mean.size(),
         kept.size(), size);
  THINREDUCE_CALL(deliver)(delivery, kept, values);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
