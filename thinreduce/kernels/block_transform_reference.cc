// The transforms of block_transform.cc, one block at a time in scalar code: the definition of the
// bits.
#include <bit>

#include "thinreduce/kernels/block_transform.h"

namespace thinreduce::kernels::reference {
namespace {

struct Complex {
  float re = 0;
  float im = 0;
};
Complex operator+(Complex a, Complex b) {
  return {a.re + b.re, a.im + b.im};
}
Complex operator-(Complex a, Complex b) {
  return {a.re - b.re, a.im - b.im};
}
Complex times_i(Complex a) {
  return {-a.im, a.re};
}
// a times (cos - i*sin), and a times its conjugate.
Complex turn_back(Complex a, const float* cos_sin) {
  return {a.re * cos_sin[0] + a.im * cos_sin[1], a.im * cos_sin[0] - a.re * cos_sin[1]};
}
Complex turn_on(Complex a, const float* cos_sin) {
  return {a.re * cos_sin[0] - a.im * cos_sin[1], a.im * cos_sin[0] + a.re * cos_sin[1]};
}

// Passes of more than 8 multiply by the factor 1 like any other, smaller ones leave it out, as the
// vector code does: it can change the sign of a zero.
void passes_forward(const TransformTables& tables, Complex* x, std::size_t m) {
  if (m == 1) return;
  if (m == 2) {
    const Complex sum = x[0] + x[1];
    x[1] = x[0] - x[1];
    x[0] = sum;
    return;
  }
  const float* w = &tables.twiddles[tables.passes[static_cast<std::size_t>(std::countr_zero(m))]];
  const std::size_t quarter = m / 4;
  for (std::size_t j = 0; j < quarter; ++j, w += 6) {
    const Complex a = x[j], b = x[j + quarter], c = x[j + 2 * quarter], d = x[j + 3 * quarter];
    const Complex y[3] = {(a - c) - times_i(b - d), (a + c) - (b + d), (a - c) + times_i(b - d)};
    x[j] = (a + c) + (b + d);
    for (std::size_t i = 0; i < 3; ++i) {
      x[j + (i + 1) * quarter] = m <= 8 && j == 0 ? y[i] : turn_back(y[i], w + 2 * i);
    }
  }
  for (std::size_t i = 0; i < 4; ++i) passes_forward(tables, x + i * quarter, quarter);
}

void passes_inverse(const TransformTables& tables, Complex* x, std::size_t m) {
  if (m == 1) return;
  if (m == 2) return passes_forward(tables, x, m);
  const std::size_t quarter = m / 4;
  for (std::size_t i = 0; i < 4; ++i) passes_inverse(tables, x + i * quarter, quarter);
  const float* w = &tables.twiddles[tables.passes[static_cast<std::size_t>(std::countr_zero(m))]];
  for (std::size_t j = 0; j < quarter; ++j, w += 6) {
    Complex y[4] = {x[j], x[j + quarter], x[j + 2 * quarter], x[j + 3 * quarter]};
    for (std::size_t i = 1; i < 4 && (m > 8 || j > 0); ++i) y[i] = turn_on(y[i], w + 2 * i - 2);
    x[j] = (y[0] + y[2]) + (y[1] + y[3]);
    x[j + quarter] = (y[0] - y[2]) + times_i(y[1] - y[3]);
    x[j + 2 * quarter] = (y[0] + y[2]) - (y[1] + y[3]);
    x[j + 3 * quarter] = (y[0] - y[2]) - times_i(y[1] - y[3]);
  }
}

// The spectrum of one of 16 interleaved blocks.
class Spectrum {
 public:
  Spectrum(const TransformTables& tables, float* first) : tables_(tables), first_(first) {}

  float& coefficient(std::size_t q) { return first_[q * kBlockLanes]; }
  float& nyquist() { return coefficient(fft() ? 1 : tables_.length / 2); }
  void put(std::size_t k, Complex bin) {
    if (!fft()) bin = turn_back(bin, &tables_.quarter_turns[2 * k]);
    coefficient(fft() ? 2 * k : k) = bin.re;
    coefficient(fft() ? 2 * k + 1 : tables_.length - k) = fft() ? bin.im : -bin.im;
  }
  Complex get(std::size_t k) {
    if (fft()) return {coefficient(2 * k), coefficient(2 * k + 1)};
    return turn_on({coefficient(k), -coefficient(tables_.length - k)},
                   &tables_.quarter_turns[2 * k]);
  }

 private:
  [[nodiscard]] bool fft() const { return tables_.transform == Transform::fft; }
  const TransformTables& tables_;
  float* first_;
};

void forward_block(const TransformTables& tables, const float* block, Spectrum out,
                   std::vector<Complex>& x) {
  const std::size_t m = tables.length / 2;
  for (std::size_t i = 0; i < tables.length; ++i) {
    const std::size_t place = tables.order[i];
    (place % 2 == 0 ? x[place / 2].re : x[place / 2].im) = block[i];
  }
  passes_forward(tables, x.data(), m);
  const float half = tables.scale_half;
  const Complex first = x[tables.places[0]];
  out.coefficient(0) = (first.re + first.im) * tables.scale_ends;
  out.nyquist() = (first.re - first.im) * tables.scale_ends;
  const Complex middle = x[tables.places[m / 2]];
  out.put(m / 2, {middle.re * (half + half), -(middle.im * (half + half))});
  for (std::size_t k = 1; k < m / 2; ++k) {
    const Complex z = x[tables.places[k]];
    const Complex mirror = x[tables.places[m - k]];
    const Complex even{(z.re + mirror.re) * half, (z.im - mirror.im) * half};
    const Complex odd = turn_back({z.im + mirror.im, mirror.re - z.re}, &tables.rotations[2 * k]);
    out.put(k, even + odd);
    out.put(m - k, {even.re - odd.re, odd.im - even.im});
  }
}

void inverse_block(const TransformTables& tables, Spectrum in, float scale, float* block,
                   std::vector<Complex>& x) {
  const std::size_t m = tables.length / 2;
  const float half = tables.scale_half;
  const float dc = in.coefficient(0) * tables.scale_ends;
  const float nyquist = in.nyquist() * tables.scale_ends;
  x[tables.places[0]] = {dc + nyquist, dc - nyquist};
  const Complex middle = in.get(m / 2);
  x[tables.places[m / 2]] = {middle.re * (half + half), -(middle.im * (half + half))};
  for (std::size_t k = 1; k < m / 2; ++k) {
    const Complex bin = in.get(k);
    const Complex mirror = in.get(m - k);
    const Complex even{(bin.re + mirror.re) * half, (bin.im - mirror.im) * half};
    const Complex odd = turn_on({bin.re - mirror.re, bin.im + mirror.im}, &tables.rotations[2 * k]);
    x[tables.places[k]] = {even.re - odd.im, even.im + odd.re};
    x[tables.places[m - k]] = {even.re + odd.im, odd.re - even.im};
  }
  passes_inverse(tables, x.data(), m);
  for (std::size_t i = 0; i < tables.length; ++i) {
    const std::size_t place = tables.order[i];
    block[i] = (place % 2 == 0 ? x[place / 2].re : x[place / 2].im) * scale;
  }
}

}  // namespace

void forward(const TransformTables& tables, std::span<const float> blocks, std::span<float> spectra,
             std::span<float> /*scratch*/) {
  std::vector<Complex> x(tables.length / 2);
  for (std::size_t lane = 0; lane < kBlockLanes; ++lane) {
    forward_block(tables, &blocks[lane * tables.length], Spectrum(tables, &spectra[lane]), x);
  }
}

void inverse(const TransformTables& tables, std::span<const float> spectra, float scale,
             std::span<float> blocks, std::span<float> /*scratch*/) {
  std::vector<Complex> x(tables.length / 2);
  std::vector<float> copy(spectra.begin(), spectra.end());
  for (std::size_t lane = 0; lane < kBlockLanes; ++lane) {
    inverse_block(tables, Spectrum(tables, &copy[lane]), scale, &blocks[lane * tables.length], x);
  }
}

}  // namespace thinreduce::kernels::reference
