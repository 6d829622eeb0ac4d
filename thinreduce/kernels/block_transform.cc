// A block of n floats is treated as n/2 complex numbers (even floats real, odd ones imaginary).
// They go through radix-4 passes in place, which leave the frequencies in digit-reversed order. The
// last stage separates the spectra of the even and the odd floats and combines them into the
// spectrum of the block; it reads in digit-reversed order, so there is no reordering pass. The
// inverse reverses these stages. The cosine transform is the Fourier transform of the block with
// its even floats first, followed by its odd floats in reverse order, each bin rotated by a
// quarter-bin angle.
#include "thinreduce/kernels/block_transform.h"

#include <bit>

#include "thinreduce/ensure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/kernels/block_transform.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The transposition below needs at least 4 lanes and a width known at compile time.
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE

void forward(const TransformTables& tables, std::span<const float> blocks, std::span<float> spectra,
             std::span<float> scratch) {
  reference::forward(tables, blocks, spectra, scratch);
}
void inverse(const TransformTables& tables, std::span<const float> spectra, float scale,
             std::span<float> blocks, std::span<float> scratch) {
  reference::inverse(tables, spectra, scale, blocks, scratch);
}

#else

using D = hn::CappedTag<float, kBlockLanes>;
using V = hn::Vec<D>;
constexpr std::size_t kLanes = hn::MaxLanes(D());

// One complex number in every lane.
struct Complex {
  V re;
  V im;
};

HWY_INLINE Complex operator+(Complex a, Complex b) {
  return {hn::Add(a.re, b.re), hn::Add(a.im, b.im)};
}
HWY_INLINE Complex operator-(Complex a, Complex b) {
  return {hn::Sub(a.re, b.re), hn::Sub(a.im, b.im)};
}
HWY_INLINE Complex load(const float* from) {
  return {hn::Load(D(), from), hn::Load(D(), from + kLanes)};
}
HWY_INLINE void store(Complex value, float* to) {
  hn::Store(value.re, D(), to);
  hn::Store(value.im, D(), to + kLanes);
}
// a + i*b and a - i*b
HWY_INLINE Complex add_i(Complex a, Complex b) {
  return {hn::Sub(a.re, b.im), hn::Add(a.im, b.re)};
}
HWY_INLINE Complex sub_i(Complex a, Complex b) {
  return {hn::Add(a.re, b.im), hn::Sub(a.im, b.re)};
}
// a times (cos - i*sin), and a times its conjugate.
HWY_INLINE Complex turn_back(Complex a, const float* cos_sin) {
  const V c = hn::Set(D(), cos_sin[0]);
  const V s = hn::Set(D(), cos_sin[1]);
  return {hn::Add(hn::Mul(a.re, c), hn::Mul(a.im, s)), hn::Sub(hn::Mul(a.im, c), hn::Mul(a.re, s))};
}
HWY_INLINE Complex turn_on(Complex a, const float* cos_sin) {
  const V c = hn::Set(D(), cos_sin[0]);
  const V s = hn::Set(D(), cos_sin[1]);
  return {hn::Sub(hn::Mul(a.re, c), hn::Mul(a.im, s)), hn::Add(hn::Mul(a.im, c), hn::Mul(a.re, s))};
}

struct Four {
  Complex y0, y1, y2, y3;
};
HWY_INLINE Four butterfly(Complex a, Complex b, Complex c, Complex d) {
  const Complex s0 = a + c, s1 = a - c, s2 = b + d, s3 = b - d;
  return {s0 + s2, sub_i(s1, s3), s0 - s2, add_i(s1, s3)};
}
HWY_INLINE Four butterfly_back(Complex y0, Complex y1, Complex y2, Complex y3) {
  const Complex t0 = y0 + y2, t1 = y0 - y2, t2 = y1 + y3, t3 = y1 - y3;
  return {t0 + t2, add_i(t1, t3), t0 - t2, sub_i(t1, t3)};
}

constexpr std::size_t kStride = 2 * kLanes;  // floats per complex vector

HWY_INLINE void forward4(float* x) {
  const Four y =
      butterfly(load(x), load(x + kStride), load(x + 2 * kStride), load(x + 3 * kStride));
  store(y.y0, x);
  store(y.y1, x + kStride);
  store(y.y2, x + 2 * kStride);
  store(y.y3, x + 3 * kStride);
}
HWY_INLINE void inverse4(float* x) {
  const Four y =
      butterfly_back(load(x), load(x + kStride), load(x + 2 * kStride), load(x + 3 * kStride));
  store(y.y0, x);
  store(y.y1, x + kStride);
  store(y.y2, x + 2 * kStride);
  store(y.y3, x + 3 * kStride);
}

// A radix-4 pass and four radix-2 passes in registers.
HWY_INLINE void forward8(float* x, const float* w) {
  const Four even =
      butterfly(load(x), load(x + 2 * kStride), load(x + 4 * kStride), load(x + 6 * kStride));
  Four odd = butterfly(load(x + kStride), load(x + 3 * kStride), load(x + 5 * kStride),
                       load(x + 7 * kStride));
  odd.y1 = turn_back(odd.y1, w + 6);
  odd.y2 = turn_back(odd.y2, w + 8);
  odd.y3 = turn_back(odd.y3, w + 10);
  store(even.y0 + odd.y0, x);
  store(even.y0 - odd.y0, x + kStride);
  store(even.y1 + odd.y1, x + 2 * kStride);
  store(even.y1 - odd.y1, x + 3 * kStride);
  store(even.y2 + odd.y2, x + 4 * kStride);
  store(even.y2 - odd.y2, x + 5 * kStride);
  store(even.y3 + odd.y3, x + 6 * kStride);
  store(even.y3 - odd.y3, x + 7 * kStride);
}
HWY_INLINE void inverse8(float* x, const float* w) {
  const auto sum = [&](std::size_t i)
                       HWY_ATTR { return load(x + i * kStride) + load(x + (i + 1) * kStride); };
  const auto difference = [&](std::size_t i) HWY_ATTR {
    return load(x + i * kStride) - load(x + (i + 1) * kStride);
  };
  const Four odd = butterfly_back(difference(0), turn_on(difference(2), w + 6),
                                  turn_on(difference(4), w + 8), turn_on(difference(6), w + 10));
  const Four even = butterfly_back(sum(0), sum(2), sum(4), sum(6));
  store(even.y0, x);
  store(odd.y0, x + kStride);
  store(even.y1, x + 2 * kStride);
  store(odd.y1, x + 3 * kStride);
  store(even.y2, x + 4 * kStride);
  store(odd.y2, x + 5 * kStride);
  store(even.y3, x + 6 * kStride);
  store(odd.y3, x + 7 * kStride);
}

// Recurses into each quarter before the next, so that long blocks stay in the L1 cache.
void passes_forward(const TransformTables& tables, float* x, std::size_t m) {
  const float* w = &tables.twiddles[tables.passes[std::countr_zero(m)]];
  if (m == 4) return forward4(x);
  if (m == 8) return forward8(x, w);
  const std::size_t quarter = m / 4 * kStride;
  for (float* at = x; at != x + quarter; at += kStride, w += 6) {
    const Four y =
        butterfly(load(at), load(at + quarter), load(at + 2 * quarter), load(at + 3 * quarter));
    store(y.y0, at);
    store(turn_back(y.y1, w), at + quarter);
    store(turn_back(y.y2, w + 2), at + 2 * quarter);
    store(turn_back(y.y3, w + 4), at + 3 * quarter);
  }
  for (std::size_t i = 0; i < 4; ++i) passes_forward(tables, x + i * quarter, m / 4);
}
void passes_inverse(const TransformTables& tables, float* x, std::size_t m) {
  const float* w = &tables.twiddles[tables.passes[std::countr_zero(m)]];
  if (m == 4) return inverse4(x);
  if (m == 8) return inverse8(x, w);
  const std::size_t quarter = m / 4 * kStride;
  for (std::size_t i = 0; i < 4; ++i) passes_inverse(tables, x + i * quarter, m / 4);
  for (float* at = x; at != x + quarter; at += kStride, w += 6) {
    const Four y = butterfly_back(load(at), turn_on(load(at + quarter), w),
                                  turn_on(load(at + 2 * quarter), w + 2),
                                  turn_on(load(at + 3 * quarter), w + 4));
    store(y.y0, at);
    store(y.y1, at + quarter);
    store(y.y2, at + 2 * quarter);
    store(y.y3, at + 3 * quarter);
  }
}

// Transposes 4 x 4 floats inside each 128-bit part.
HWY_INLINE void transpose(V& a, V& b, V& c, V& d) {
  const D floats;
  const hn::Repartition<double, D> pairs;
  const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(floats, a, b));
  const auto cd_low = hn::BitCast(pairs, hn::InterleaveLower(floats, c, d));
  const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(floats, a, b));
  const auto cd_high = hn::BitCast(pairs, hn::InterleaveUpper(floats, c, d));
  a = hn::BitCast(floats, hn::InterleaveLower(pairs, ab_low, cd_low));
  b = hn::BitCast(floats, hn::InterleaveUpper(pairs, ab_low, cd_low));
  c = hn::BitCast(floats, hn::InterleaveLower(pairs, ab_high, cd_high));
  d = hn::BitCast(floats, hn::InterleaveUpper(pairs, ab_high, cd_high));
}

// Loads four floats of every fourth row, one row per 128 bits.
template <class DN = D>
HWY_INLINE hn::Vec<DN> load_rows(const float* from, std::size_t row) {
  if constexpr (hn::MaxLanes(DN()) == 4) {
    return hn::LoadU(DN(), from);
  } else {
    using Half = hn::Half<DN>;
    const auto low = load_rows<Half>(from, row);
    const auto high = load_rows<Half>(from + hn::MaxLanes(Half()) * row, row);
    return hn::Combine(DN(), high, low);
  }
}
// Loads four lanes of every fourth float, one float per 128 bits.
template <class DN = D>
HWY_INLINE hn::Vec<DN> load_lanes(const float* lanes, const std::uint32_t* order) {
  if constexpr (hn::MaxLanes(DN()) == 4) {
    return hn::LoadU(DN(), lanes + kLanes * *order);
  } else {
    using Half = hn::Half<DN>;
    const auto low = load_lanes<Half>(lanes, order);
    const auto high = load_lanes<Half>(lanes, order + hn::MaxLanes(Half()));
    return hn::Combine(DN(), high, low);
  }
}

// Begins to load the floats of four vectors, which are read or written with the next 16 blocks: no
// CPU foresees 16 rows. A few at a time, because only some loads can be under way.
HWY_INLINE const float* prefetch_four(const float* next) {
  for (std::size_t i = 0; i < 4 * kLanes; i += 16) hwy::Prefetch(next + i);
  return next + 4 * kLanes;
}

void rows_to_lanes(const TransformTables& tables, const float* rows, float* lanes) {
  const std::size_t n = tables.length;
  const float* next = rows + kBlockLanes * n;
  for (std::size_t i = 0; i < n; i += 4) {
    next = prefetch_four(next);
    V a = load_rows(rows + i, n);
    V b = load_rows(rows + n + i, n);
    V c = load_rows(rows + 2 * n + i, n);
    V d = load_rows(rows + 3 * n + i, n);
    transpose(a, b, c, d);
    hn::Store(a, D(), lanes + kLanes * tables.order[i]);
    hn::Store(b, D(), lanes + kLanes * tables.order[i + 1]);
    hn::Store(c, D(), lanes + kLanes * tables.order[i + 2]);
    hn::Store(d, D(), lanes + kLanes * tables.order[i + 3]);
  }
}
// Stores whole vectors, four rows at a time and several vectors per row: the rows are a power of
// two apart, so cache lines of more rows would evict each other before they are full.
void lanes_to_rows(const TransformTables& tables, const float* lanes, float scale, float* rows) {
  const std::size_t n = tables.length;
  const V factor = hn::Set(D(), scale);
  constexpr std::size_t kColumns = 64;
  const float* next = rows + kBlockLanes * n;
  for (std::size_t first = 0; first < n; first += kColumns) {
    for (std::size_t row = 0; row < kLanes; row += 4) {
      for (std::size_t i = first; i < first + kColumns; i += kLanes) {
        next = prefetch_four(next);
        V a = load_lanes(lanes + row, &tables.order[i]);
        V b = load_lanes(lanes + row, &tables.order[i + 1]);
        V c = load_lanes(lanes + row, &tables.order[i + 2]);
        V d = load_lanes(lanes + row, &tables.order[i + 3]);
        transpose(a, b, c, d);
        hn::StoreU(hn::Mul(a, factor), D(), rows + row * n + i);
        hn::StoreU(hn::Mul(b, factor), D(), rows + (row + 1) * n + i);
        hn::StoreU(hn::Mul(c, factor), D(), rows + (row + 2) * n + i);
        hn::StoreU(hn::Mul(d, factor), D(), rows + (row + 3) * n + i);
      }
    }
  }
}

// Store and load one bin of the spectrum.
template <Transform transform>
HWY_INLINE void store_bin(const TransformTables& tables, Complex bin, std::size_t k,
                          float* spectra) {
  if constexpr (transform == Transform::fft) {
    hn::StoreU(bin.re, D(), spectra + 2 * k * kBlockLanes);
    hn::StoreU(bin.im, D(), spectra + (2 * k + 1) * kBlockLanes);
  } else {
    const Complex turned = turn_back(bin, &tables.quarter_turns[2 * k]);
    hn::StoreU(turned.re, D(), spectra + k * kBlockLanes);
    hn::StoreU(hn::Neg(turned.im), D(), spectra + (tables.length - k) * kBlockLanes);
  }
}
template <Transform transform>
HWY_INLINE Complex load_bin(const TransformTables& tables, std::size_t k, const float* spectra) {
  if constexpr (transform == Transform::fft) {
    return {hn::LoadU(D(), spectra + 2 * k * kBlockLanes),
            hn::LoadU(D(), spectra + (2 * k + 1) * kBlockLanes)};
  } else {
    const Complex turned{hn::LoadU(D(), spectra + k * kBlockLanes),
                         hn::Neg(hn::LoadU(D(), spectra + (tables.length - k) * kBlockLanes))};
    return turn_on(turned, &tables.quarter_turns[2 * k]);
  }
}
// Nyquist shares a pair with DC; in the cosine transform it is the middle frequency.
HWY_INLINE std::size_t nyquist_offset(const TransformTables& tables) {
  return (tables.transform == Transform::fft ? 1 : tables.length / 2) * kBlockLanes;
}

template <Transform transform>
void separate(const TransformTables& tables, const float* x, float* spectra) {
  const std::size_t m = tables.length / 2;
  const auto at = [&](std::size_t k) HWY_ATTR { return load(x + kStride * tables.places[k]); };
  const V ends = hn::Set(D(), tables.scale_ends);
  const V half = hn::Set(D(), tables.scale_half);
  const V whole = hn::Add(half, half);
  const Complex first = at(0);
  hn::StoreU(hn::Mul(hn::Add(first.re, first.im), ends), D(), spectra);
  hn::StoreU(hn::Mul(hn::Sub(first.re, first.im), ends), D(), spectra + nyquist_offset(tables));
  const Complex middle = at(m / 2);
  store_bin<transform>(tables, {hn::Mul(middle.re, whole), hn::Neg(hn::Mul(middle.im, whole))},
                       m / 2, spectra);
  for (std::size_t k = 1; k < m / 2; ++k) {
    const Complex z = at(k);
    const Complex mirror = at(m - k);
    const Complex even{hn::Mul(hn::Add(z.re, mirror.re), half),
                       hn::Mul(hn::Sub(z.im, mirror.im), half)};
    const Complex odd =
        turn_back({hn::Add(z.im, mirror.im), hn::Sub(mirror.re, z.re)}, &tables.rotations[2 * k]);
    store_bin<transform>(tables, even + odd, k, spectra);
    store_bin<transform>(tables, {hn::Sub(even.re, odd.re), hn::Sub(odd.im, even.im)}, m - k,
                         spectra);
  }
}

template <Transform transform>
void join(const TransformTables& tables, const float* spectra, float* x) {
  const std::size_t m = tables.length / 2;
  const auto put = [&](Complex value, std::size_t k)
                       HWY_ATTR { store(value, x + kStride * tables.places[k]); };
  const V ends = hn::Set(D(), tables.scale_ends);
  const V half = hn::Set(D(), tables.scale_half);
  const V whole = hn::Add(half, half);
  const V dc = hn::Mul(hn::LoadU(D(), spectra), ends);
  const V nyquist = hn::Mul(hn::LoadU(D(), spectra + nyquist_offset(tables)), ends);
  put({hn::Add(dc, nyquist), hn::Sub(dc, nyquist)}, 0);
  const Complex middle = load_bin<transform>(tables, m / 2, spectra);
  put({hn::Mul(middle.re, whole), hn::Neg(hn::Mul(middle.im, whole))}, m / 2);
  for (std::size_t k = 1; k < m / 2; ++k) {
    const Complex bin = load_bin<transform>(tables, k, spectra);
    const Complex mirror = load_bin<transform>(tables, m - k, spectra);
    const Complex even{hn::Mul(hn::Add(bin.re, mirror.re), half),
                       hn::Mul(hn::Sub(bin.im, mirror.im), half)};
    const Complex odd =
        turn_on({hn::Sub(bin.re, mirror.re), hn::Add(bin.im, mirror.im)}, &tables.rotations[2 * k]);
    put({hn::Sub(even.re, odd.im), hn::Add(even.im, odd.re)}, k);
    put({hn::Add(even.re, odd.im), hn::Sub(odd.re, even.im)}, m - k);
  }
}

void forward(const TransformTables& tables, std::span<const float> blocks, std::span<float> spectra,
             std::span<float> scratch) {
  for (std::size_t lane = 0; lane < kBlockLanes; lane += kLanes) {
    rows_to_lanes(tables, &blocks[lane * tables.length], scratch.data());
    passes_forward(tables, scratch.data(), tables.length / 2);
    if (tables.transform == Transform::fft) {
      separate<Transform::fft>(tables, scratch.data(), &spectra[lane]);
    } else {
      separate<Transform::dct>(tables, scratch.data(), &spectra[lane]);
    }
  }
}

void inverse(const TransformTables& tables, std::span<const float> spectra, float scale,
             std::span<float> blocks, std::span<float> scratch) {
  for (std::size_t lane = 0; lane < kBlockLanes; lane += kLanes) {
    if (tables.transform == Transform::fft) {
      join<Transform::fft>(tables, &spectra[lane], scratch.data());
    } else {
      join<Transform::dct>(tables, &spectra[lane], scratch.data());
    }
    passes_inverse(tables, scratch.data(), tables.length / 2);
    lanes_to_rows(tables, scratch.data(), scale, &blocks[lane * tables.length]);
  }
}

#endif

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace {

void check(const TransformTables& tables, std::span<const float> a, std::span<const float> b,
           std::span<const float> scratch) {
  const std::size_t floats = kBlockLanes * tables.length;
  ensure(a.size() == floats && b.size() == floats && scratch.size() == floats,
         "a transform must get 16 blocks", a.size(), b.size(), scratch.size());
  const auto past_line = reinterpret_cast<std::uintptr_t>(scratch.data()) % 64;
  ensure(past_line == 0, "a transform's scratch must be aligned to a cache line", past_line);
}

}  // namespace

THINREDUCE_KERNEL(forward);
THINREDUCE_KERNEL(inverse);

void forward(const TransformTables& tables, std::span<const float> blocks, std::span<float> spectra,
             std::span<float> scratch) {
  check(tables, blocks, spectra, scratch);
  THINREDUCE_CALL(forward)(tables, blocks, spectra, scratch);
}

void inverse(const TransformTables& tables, std::span<const float> spectra, float scale,
             std::span<float> blocks, std::span<float> scratch) {
  check(tables, blocks, spectra, scratch);
  THINREDUCE_CALL(inverse)(tables, spectra, scale, blocks, scratch);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
