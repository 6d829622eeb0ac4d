#include "thinreduce/methods/powersgd/thin_products.h"

#include <algorithm>
#include <array>

#include "thinreduce/ensure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/methods/powersgd/thin_products.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

#ifndef THINREDUCE_KERNELS_THIN_PRODUCTS_ONCE
#define THINREDUCE_KERNELS_THIN_PRODUCTS_ONCE
namespace thinreduce::kernels {
namespace {

// Number of partial sums; see times().
constexpr std::size_t kPartials = 16;
using Partials = std::array<float, kPartials>;

float add_up(Partials& partials) {
  for (std::size_t width = kPartials / 2; width > 0; width /= 2) {
    for (std::size_t l = 0; l < width; ++l) partials[l] += partials[l + width];
  }
  return partials[0];
}

// Thin columns per pass; if fewer are left, the last one is computed repeatedly.
constexpr std::size_t kTogether = 4;

struct Four {
  const float* HWY_RESTRICT columns[kTogether];

  Four(std::span<const float> thin, std::size_t rows, std::size_t first) {
    const std::size_t basis = thin.size() / rows;
    for (std::size_t k = 0; k < kTogether; ++k) {
      columns[k] = thin.data() + std::min(first + k, basis - 1) * rows;
    }
  }
};

}  // namespace
}  // namespace thinreduce::kernels
#endif  // THINREDUCE_KERNELS_THIN_PRODUCTS_ONCE

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, kPartials>;

// Computes the partial sums of one row times four columns of Q, over the whole groups of 16
// columns. `part` is the first of the partial sums in this vector.
HWY_INLINE void row_times_four(const float* HWY_RESTRICT row, std::size_t whole, const Four& q,
                               std::size_t part, std::array<Partials, kTogether>& sums) {
  const Floats d;
  auto s0 = hn::Zero(d);
  auto s1 = hn::Zero(d);
  auto s2 = hn::Zero(d);
  auto s3 = hn::Zero(d);
  for (std::size_t j = part; j < whole; j += kPartials) {
    const auto m = hn::LoadU(d, row + j);
    s0 = hn::Add(s0, hn::Mul(m, hn::LoadU(d, q.columns[0] + j)));
    s1 = hn::Add(s1, hn::Mul(m, hn::LoadU(d, q.columns[1] + j)));
    s2 = hn::Add(s2, hn::Mul(m, hn::LoadU(d, q.columns[2] + j)));
    s3 = hn::Add(s3, hn::Mul(m, hn::LoadU(d, q.columns[3] + j)));
  }
  hn::StoreU(s0, d, &sums[0][part]);
  hn::StoreU(s1, d, &sums[1][part]);
  hn::StoreU(s2, d, &sums[2][part]);
  hn::StoreU(s3, d, &sums[3][part]);
}

void times(const ConstMatrix& m, std::span<const float> q, const ThinRows& p) {
  const std::size_t lanes = hn::Lanes(Floats());
  const std::size_t rows = m.values.size() / m.columns;
  const std::size_t basis = q.size() / m.columns;
  const std::size_t whole = m.columns / kPartials * kPartials;
  for (std::size_t i = 0; i < rows; ++i) {
    const float* const row = m.values.data() + i * m.columns;
    for (std::size_t first = 0; first < basis; first += kTogether) {
      const Four four(q, m.columns, first);
      std::array<Partials, kTogether> sums;
      for (std::size_t part = 0; part < kPartials; part += lanes) {
        row_times_four(row, whole, four, part, sums);
      }
      for (std::size_t k = 0; k < std::min(kTogether, basis - first); ++k) {
        for (std::size_t j = whole; j < m.columns; ++j) {
          sums[k][j - whole] += row[j] * four.columns[k][j];
        }
        p.values[(first + k) * p.rows + p.first + i] = add_up(sums[k]);
      }
    }
  }
}

// Rows per pass: a piece of Q is loaded and stored once for all of them.
constexpr std::size_t kRowsTogether = 8;

void add_transposed_times(const ConstMatrix& m, const ConstThinRows& p, std::span<float> q) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t rows = m.values.size() / m.columns;
  const std::size_t basis = q.size() / m.columns;
  const std::size_t whole = m.columns / lanes * lanes;
  for (std::size_t top = 0; top < rows; top += kRowsTogether) {
    const std::size_t count = std::min(kRowsTogether, rows - top);
    const float* HWY_RESTRICT const row = m.values.data() + top * m.columns;
    for (std::size_t first = 0; first < basis; first += kTogether) {
      const std::size_t columns = std::min(kTogether, basis - first);
      const Four four(p.values, p.rows, first);
      float factors[kRowsTogether][kTogether];
      for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t k = 0; k < kTogether; ++k) {
          factors[i][k] = four.columns[k][p.first + top + i];
        }
      }
      float* HWY_RESTRICT const q0 = q.data() + first * m.columns;
      if (columns == kTogether) {
        float* HWY_RESTRICT const q1 = q0 + m.columns;
        float* HWY_RESTRICT const q2 = q1 + m.columns;
        float* HWY_RESTRICT const q3 = q2 + m.columns;
        for (std::size_t j = 0; j < whole; j += lanes) {
          auto s0 = hn::LoadU(d, q0 + j);
          auto s1 = hn::LoadU(d, q1 + j);
          auto s2 = hn::LoadU(d, q2 + j);
          auto s3 = hn::LoadU(d, q3 + j);
          for (std::size_t i = 0; i < count; ++i) {
            const auto value = hn::LoadU(d, row + i * m.columns + j);
            s0 = hn::Add(s0, hn::Mul(value, hn::Set(d, factors[i][0])));
            s1 = hn::Add(s1, hn::Mul(value, hn::Set(d, factors[i][1])));
            s2 = hn::Add(s2, hn::Mul(value, hn::Set(d, factors[i][2])));
            s3 = hn::Add(s3, hn::Mul(value, hn::Set(d, factors[i][3])));
          }
          hn::StoreU(s0, d, q0 + j);
          hn::StoreU(s1, d, q1 + j);
          hn::StoreU(s2, d, q2 + j);
          hn::StoreU(s3, d, q3 + j);
        }
      } else {
        for (std::size_t k = 0; k < columns; ++k) {
          float* HWY_RESTRICT const column = q0 + k * m.columns;
          for (std::size_t j = 0; j < whole; j += lanes) {
            auto sum = hn::LoadU(d, column + j);
            for (std::size_t i = 0; i < count; ++i) {
              const auto value = hn::LoadU(d, row + i * m.columns + j);
              sum = hn::Add(sum, hn::Mul(value, hn::Set(d, factors[i][k])));
            }
            hn::StoreU(sum, d, column + j);
          }
        }
      }
      for (std::size_t k = 0; k < columns; ++k) {
        for (std::size_t j = whole; j < m.columns; ++j) {
          for (std::size_t i = 0; i < count; ++i) {
            q0[k * m.columns + j] += row[i * m.columns + j] * factors[i][k];
          }
        }
      }
    }
  }
}

void split_product(const ConstThinRows& p, std::span<const float> q, const ProductSplit& split) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t basis = p.values.size() / p.rows;
  const std::size_t columns = q.size() / basis;
  const std::size_t rows = split.m.size() / columns;
  const std::size_t whole = columns / lanes * lanes;
  for (std::size_t i = 0; i < rows; ++i) {
    const float* HWY_RESTRICT const factors = p.values.data() + p.first + i;
    float* HWY_RESTRICT const m = split.m.data() + i * columns;
    float* HWY_RESTRICT const out = split.out.data() + i * columns;
    const float* HWY_RESTRICT const first = q.data();
    for (std::size_t j = 0; j < whole; j += lanes) {
      auto sum = hn::Mul(hn::Set(d, factors[0]), hn::LoadU(d, first + j));
      for (std::size_t k = 1; k < basis; ++k) {
        sum = hn::Add(
            sum, hn::Mul(hn::Set(d, factors[k * p.rows]), hn::LoadU(d, first + k * columns + j)));
      }
      hn::StoreU(sum, d, out + j);
      hn::StoreU(hn::Sub(hn::LoadU(d, m + j), sum), d, m + j);
    }
    for (std::size_t j = whole; j < columns; ++j) {
      float sum = factors[0] * first[j];
      for (std::size_t k = 1; k < basis; ++k) sum += factors[k * p.rows] * first[k * columns + j];
      out[j] = sum;
      m[j] -= sum;
    }
  }
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

void times(const ConstMatrix& m, std::span<const float> q, const ThinRows& p) {
  const std::size_t basis = q.size() / m.columns;
  for (std::size_t i = 0; i < m.values.size() / m.columns; ++i) {
    for (std::size_t k = 0; k < basis; ++k) {
      Partials sums{};
      for (std::size_t j = 0; j < m.columns; ++j) {
        sums[j % kPartials] += m.values[i * m.columns + j] * q[k * m.columns + j];
      }
      p.values[k * p.rows + p.first + i] = add_up(sums);
    }
  }
}

void add_transposed_times(const ConstMatrix& m, const ConstThinRows& p, std::span<float> q) {
  const std::size_t basis = q.size() / m.columns;
  for (std::size_t i = 0; i < m.values.size() / m.columns; ++i) {
    for (std::size_t k = 0; k < basis; ++k) {
      const float factor = p.values[k * p.rows + p.first + i];
      for (std::size_t j = 0; j < m.columns; ++j) {
        q[k * m.columns + j] += m.values[i * m.columns + j] * factor;
      }
    }
  }
}

void split_product(const ConstThinRows& p, std::span<const float> q, const ProductSplit& split) {
  const std::size_t basis = p.values.size() / p.rows;
  const std::size_t columns = q.size() / basis;
  for (std::size_t i = 0; i < split.m.size() / columns; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      float sum = p.values[p.first + i] * q[j];
      for (std::size_t k = 1; k < basis; ++k) {
        sum += p.values[k * p.rows + p.first + i] * q[k * columns + j];
      }
      split.out[i * columns + j] = sum;
      split.m[i * columns + j] -= sum;
    }
  }
}

}  // namespace reference

THINREDUCE_KERNEL(times);
THINREDUCE_KERNEL(add_transposed_times);
THINREDUCE_KERNEL(split_product);

namespace {

// Checks the shapes of a product: M has m_size elements in rows of `columns`, and P and Q fit.
template <typename Thin>
void check(std::size_t m_size, std::size_t columns, const Thin& p, std::size_t q_size) {
  ensure(columns > 0 && m_size % columns == 0 && q_size % columns == 0 && q_size > 0,
         "thin products: the matrix must have whole rows, and Q whole columns", m_size, columns,
         q_size);
  ensure(p.rows > 0 && p.values.size() == p.rows * (q_size / columns) &&
             p.first + m_size / columns <= p.rows,
         "thin products: P and Q must have equally many columns, and P the rows of the matrix",
         p.values.size(), p.rows, p.first, m_size, columns, q_size);
}

}  // namespace

void times(const ConstMatrix& m, std::span<const float> q, const ThinRows& p) {
  check(m.values.size(), m.columns, p, q.size());
  THINREDUCE_CALL(times)(m, q, p);
}

void add_transposed_times(const ConstMatrix& m, const ConstThinRows& p, std::span<float> q) {
  check(m.values.size(), m.columns, p, q.size());
  THINREDUCE_CALL(add_transposed_times)(m, p, q);
}

void split_product(const ConstThinRows& p, std::span<const float> q, const ProductSplit& split) {
  ensure(p.rows > 0 && p.values.size() >= p.rows, "thin products: P must have at least one column",
         p.values.size(), p.rows);
  check(split.m.size(), q.size() / (p.values.size() / p.rows), p, q.size());
  ensure(split.out.size() == split.m.size(),
         "thin products: the product must have the size of the matrix", split.out.size(),
         split.m.size());
  THINREDUCE_CALL(split_product)(p, q, split);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
