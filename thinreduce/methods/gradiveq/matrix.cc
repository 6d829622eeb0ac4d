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

// Asks for the runs line by line, one line of each run at a time.
class Fetcher {
 public:
  explicit Fetcher(const Ahead& ahead) : ahead_(ahead) {}
  HWY_INLINE void step() {
    if (at_ >= ahead_.floats) return;
    for (std::size_t run = 0; run < ahead_.count; ++run) {
      // To the second level: the first is full of the matrix.
      __builtin_prefetch(ahead_.runs[run] + at_, 0, 2);
    }
    at_ += kLine;
  }

 private:
  static constexpr std::size_t kLine = 16;
  const Ahead& ahead_;
  std::size_t at_ = 0;
};

// Multiplies input vectors by `kWide` vectors of columns. All sums stay in registers, so that a row
// of the matrix is loaded once for all inputs and an input once for all columns. The sums are
// parameters, because vectors of a length unknown to the compiler (SVE) can't be in an array: sum s
// belongs to input s / kWide and vector s % kWide of columns.
template <std::size_t kWide, std::size_t... s, typename... Sums>
HWY_INLINE void multiply_block(const Matrix& matrix, const float* HWY_RESTRICT columns,
                               const float* HWY_RESTRICT in, float* HWY_RESTRICT out,
                               Fetcher& fetcher, std::index_sequence<s...> /*indices*/,
                               Sums... sums) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t row = 0; row < matrix.rows; ++row) {
    if (row % 2 == 0) fetcher.step();
    const float* const factors = columns + row * matrix.stride;
    const auto first = hn::LoadU(d, factors);
    const auto last = hn::LoadU(d, factors + (kWide - 1) * lanes);
    ((sums = hn::Add(sums, hn::Mul(hn::Set(d, in[s / kWide * matrix.rows + row]),
                                   s % kWide == 0 ? first : last))),
     ...);
  }
  (hn::StoreU(sums, d, out + s / kWide * matrix.stride + s % kWide * lanes), ...);
}

template <std::size_t kWide, std::size_t... s>
HWY_INLINE void multiply_block(const Matrix& matrix, const float* columns, const float* in,
                               float* out, Fetcher& fetcher, std::index_sequence<s...> indices) {
  static_assert(kWide == 1 || kWide == 2);
  multiply_block<kWide>(matrix, columns, in, out, fetcher, indices,
                        (static_cast<void>(s), hn::Zero(Floats()))...);
}

template <std::size_t kVectors>
HWY_INLINE void multiply_rows(const Matrix& matrix, const float* in, float* out, Fetcher& fetcher) {
  const std::size_t lanes = hn::Lanes(Floats());
  std::size_t column = 0;
  for (; column + 2 * lanes <= matrix.stride; column += 2 * lanes) {
    multiply_block<2>(matrix, matrix.values.data() + column, in, out + column, fetcher,
                      std::make_index_sequence<2 * kVectors>());
  }
  for (; column < matrix.stride; column += lanes) {
    multiply_block<1>(matrix, matrix.values.data() + column, in, out + column, fetcher,
                      std::make_index_sequence<kVectors>());
  }
}

void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out,
              const Ahead& ahead) {
  const std::size_t count = out.size() / matrix.stride;
  Fetcher fetcher(ahead);
  // As many sums as there are registers for: 32 with AVX-512, else 16.
  constexpr std::size_t kVectors = HWY_TARGET <= HWY_AVX3 ? 8 : 4;
  std::size_t i = 0;
  for (; i + kVectors <= count; i += kVectors) {
    multiply_rows<kVectors>(matrix, in.data() + i * matrix.rows, out.data() + i * matrix.stride,
                            fetcher);
  }
  for (; i < count; ++i) {
    multiply_rows<1>(matrix, in.data() + i * matrix.rows, out.data() + i * matrix.stride, fetcher);
  }
}

void center(std::span<const float> gradient, std::span<const float> mean, float share,
            std::span<float> out) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, share);
  std::size_t i = 0;
  for (; i + lanes <= out.size(); i += lanes) {
    const auto part = hn::Mul(hn::LoadU(d, &mean[i]), factor);
    hn::StoreU(hn::Sub(hn::LoadU(d, &gradient[i]), part), d, &out[i]);
  }
  reference::center(gradient.subspan(i), mean.subspan(i), share, out.subspan(i));
}

void deliver(const Delivery& delivery, std::span<float> kept, std::span<float> values) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const auto own_mean = hn::Set(d, delivery.own_mean);
  const auto whole_mean = hn::Set(d, delivery.whole_mean);
  const auto scale = hn::Set(d, delivery.scale);
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    const auto mean = hn::LoadU(d, &delivery.mean[i]);
    if (!kept.empty()) {
      const auto own = hn::Sub(hn::LoadU(d, &values[i]), hn::Mul(mean, own_mean));
      hn::StoreU(hn::Add(hn::LoadU(d, &kept[i]), own), d, &kept[i]);
    }
    const auto sum = hn::Add(hn::LoadU(d, &delivery.decoded[i]), hn::Mul(mean, whole_mean));
    hn::StoreU(hn::Mul(sum, scale), d, &values[i]);
  }
  Delivery rest = delivery;
  rest.decoded = delivery.decoded.subspan(i);
  rest.mean = delivery.mean.subspan(i);
  reference::deliver(rest, kept.empty() ? kept : kept.subspan(i), values.subspan(i));
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

// Row by row over all columns at once: the same sums in the same order as column by column.
void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out,
              const Ahead& /*ahead*/) {
  std::fill(out.begin(), out.end(), 0.0f);
  for (std::size_t v = 0; v < out.size() / matrix.stride; ++v) {
    for (std::size_t row = 0; row < matrix.rows; ++row) {
      const float value = in[v * matrix.rows + row];
      for (std::size_t column = 0; column < matrix.stride; ++column) {
        out[v * matrix.stride + column] += value * matrix.values[row * matrix.stride + column];
      }
    }
  }
}

void center(std::span<const float> gradient, std::span<const float> mean, float share,
            std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = gradient[i] - mean[i] * share;
}

void deliver(const Delivery& delivery, std::span<float> kept, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!kept.empty()) kept[i] += values[i] - delivery.mean[i] * delivery.own_mean;
    values[i] = (delivery.decoded[i] + delivery.mean[i] * delivery.whole_mean) * delivery.scale;
  }
}

}  // namespace reference

THINREDUCE_KERNEL(multiply);
THINREDUCE_KERNEL(center);
THINREDUCE_KERNEL(deliver);

void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out,
              const Ahead& ahead) {
  ensure(matrix.stride > 0 && matrix.stride % kColumnBlock == 0, "multiply: padded columns");
  ensure(matrix.values.size() == matrix.rows * matrix.stride, "multiply: a whole matrix");
  ensure(out.size() % matrix.stride == 0 && in.size() == out.size() / matrix.stride * matrix.rows,
         "multiply: as many vectors in as out");
  THINREDUCE_CALL(multiply)(matrix, in, out, ahead);
}

void center(std::span<const float> gradient, std::span<const float> mean, float share,
            std::span<float> out) {
  ensure(gradient.size() == out.size() && mean.size() == out.size(),
         "center: spans of the same length");
  THINREDUCE_CALL(center)(gradient, mean, share, out);
}

void deliver(const Delivery& delivery, std::span<float> kept, std::span<float> values) {
  ensure(delivery.decoded.size() == values.size() && delivery.mean.size() == values.size() &&
             (kept.empty() || kept.size() == values.size()),
         "deliver: spans of the same length");
  THINREDUCE_CALL(deliver)(delivery, kept, values);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
