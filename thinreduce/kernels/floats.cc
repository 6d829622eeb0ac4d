#include "thinreduce/kernels/floats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "thinreduce/ensure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/kernels/floats.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

#ifndef THINREDUCE_KERNELS_FLOATS_ONCE
#define THINREDUCE_KERNELS_FLOATS_ONCE
namespace thinreduce::kernels {
namespace {

constexpr std::size_t kSquareSums = 8;

// Adds the squares of the last values, at most one per sum, and the sums.
double add_up(std::array<double, kSquareSums>& sums, std::span<const float> last) {
  for (std::size_t i = 0; i < last.size(); ++i) sums[i] += static_cast<double>(last[i]) * last[i];
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace
}  // namespace thinreduce::kernels
#endif  // THINREDUCE_KERNELS_FLOATS_ONCE

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void add(std::span<float> sum, std::span<const float> in) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= sum.size(); i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, &sum[i]), hn::LoadU(d, &in[i])), d, &sum[i]);
  }
  reference::add(sum.subspan(i), in.subspan(i));
}

// Two independent maxima hide the latency of a comparison. The sums after these are loaded ahead:
// callers go through memory in runs that are too short for the CPU to foresee.
bool add_exchange(std::span<float> sum, std::span<float> in) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> bits;
  const std::size_t lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(bits, 0x7fffffff);
  auto largest = hn::Zero(bits);
  auto largest_odd = hn::Zero(bits);
  const auto exchange = [&](std::size_t at) HWY_ATTR {
    const auto old = hn::LoadU(d, &sum[at]);
    const auto both = hn::Add(old, hn::LoadU(d, &in[at]));
    hwy::Prefetch(sum.data() + at + sum.size());
    hn::StoreU(both, d, &sum[at]);
    hn::StoreU(old, d, &in[at]);
    return hn::And(hn::BitCast(bits, both), magnitude);
  };
  std::size_t i = 0;
  for (; i + 2 * lanes <= sum.size(); i += 2 * lanes) {
    largest = hn::Max(largest, exchange(i));
    largest_odd = hn::Max(largest_odd, exchange(i + lanes));
  }
  const auto infinite = hn::Gt(hn::Max(largest, largest_odd), hn::Set(bits, 0x7f7fffff));
  const bool rest = reference::add_exchange(sum.subspan(i), in.subspan(i));
  return hn::AllFalse(bits, infinite) && rest;
}

void add_scale(std::span<float> sum, std::span<const float> in, float scale) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  std::size_t i = 0;
  for (; i + lanes <= sum.size(); i += lanes) {
    const auto both = hn::Add(hn::LoadU(d, &sum[i]), hn::LoadU(d, &in[i]));
    hn::StoreU(hn::Mul(both, factor), d, &sum[i]);
  }
  reference::add_scale(sum.subspan(i), in.subspan(i), scale);
}

void scale(std::span<float> values, float scale) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, &values[i]), factor), d, &values[i]);
  }
  reference::scale(values.subspan(i), scale);
}

// Not hn::Max: which of +0 and -0 it returns depends on the architecture.
void maximum(std::span<float> maxima, std::span<const float> in) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= maxima.size(); i += lanes) {
    const auto old = hn::LoadU(d, &maxima[i]);
    const auto other = hn::LoadU(d, &in[i]);
    hn::StoreU(hn::IfThenElse(hn::Lt(old, other), other, old), d, &maxima[i]);
  }
  reference::maximum(maxima.subspan(i), in.subspan(i));
}

// Four independent maxima hide the latency of a comparison. A NaN is ignored: if one operand of Max
// is NaN, x86 returns the second operand and ARM the other one.
float largest_magnitude(std::span<const float> values) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d);
  auto b = a;
  auto c = a;
  auto e = a;
  std::size_t i = 0;
  const auto* in = values.data();
  for (; i + 4 * lanes <= values.size(); i += 4 * lanes) {
    a = hn::Max(hn::Abs(hn::LoadU(d, in + i)), a);
    b = hn::Max(hn::Abs(hn::LoadU(d, in + i + lanes)), b);
    c = hn::Max(hn::Abs(hn::LoadU(d, in + i + 2 * lanes)), c);
    e = hn::Max(hn::Abs(hn::LoadU(d, in + i + 3 * lanes)), e);
  }
  const auto all = hn::MaxOfLanes(d, hn::Max(hn::Max(a, b), hn::Max(c, e)));
  return std::max(hn::GetLane(all), reference::largest_magnitude(values.subspan(i)));
}

// Tests four vectors at a time; the reference then finds the element.
std::size_t first_nonfinite(std::span<const float> values) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> bits;
  const std::size_t block = 4 * hn::Lanes(d);
  const auto magnitude = hn::Set(bits, 0x7fffffff);
  const auto largest_finite = hn::Set(bits, 0x7f7fffff);
  const auto bad = [&](std::size_t at) HWY_ATTR {
    const auto value = hn::BitCast(bits, hn::LoadU(d, &values[at]));
    return hn::Gt(hn::And(value, magnitude), largest_finite);
  };
  std::size_t i = 0;
  for (; i + block <= values.size(); i += block) {
    const std::size_t lanes = block / 4;
    const auto any =
        hn::Or(hn::Or(bad(i), bad(i + lanes)), hn::Or(bad(i + 2 * lanes), bad(i + 3 * lanes)));
    if (!hn::AllFalse(bits, any)) break;
  }
  return i + reference::first_nonfinite(values.subspan(i));
}

// -0 passes; NaN fails both comparisons.
std::size_t first_no_square(std::span<const float> values) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  const auto largest = hn::Set(d, std::numeric_limits<float>::max());
  const auto good = [&](std::size_t at) HWY_ATTR {
    const auto value = hn::LoadU(d, &values[at]);
    return hn::And(hn::Le(zero, value), hn::Le(value, largest));
  };
  std::size_t i = 0;
  for (; i + 4 * lanes <= values.size(); i += 4 * lanes) {
    const auto all = hn::And(hn::And(good(i), good(i + lanes)),
                             hn::And(good(i + 2 * lanes), good(i + 3 * lanes)));
    if (!hn::AllTrue(d, all)) break;
  }
  return i + reference::first_no_square(values.subspan(i));
}

#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE

double square_sum(std::span<const float> values) {
  return reference::square_sum(values);
}

#else

// The eight sums are in as many vectors as they need; the rest of the values go to the first ones.
double square_sum(std::span<const float> values) {
  const hn::CappedTag<double, kSquareSums> d;
  const hn::Rebind<float, decltype(d)> floats;
  constexpr std::size_t kLanes = hn::MaxLanes(decltype(d)());
  constexpr std::size_t kVectors = kSquareSums / kLanes;
  hn::Vec<decltype(d)> vectors[kVectors];
  for (auto& vector : vectors) vector = hn::Zero(d);
  std::size_t i = 0;
  for (; i + kSquareSums <= values.size(); i += kSquareSums) {
    for (std::size_t k = 0; k < kVectors; ++k) {
      const auto value = hn::PromoteTo(d, hn::LoadU(floats, &values[i + k * kLanes]));
      vectors[k] = hn::Add(vectors[k], hn::Mul(value, value));
    }
  }
  alignas(64) std::array<double, kSquareSums> sums;
  for (std::size_t k = 0; k < kVectors; ++k) hn::Store(vectors[k], d, &sums[k * kLanes]);
  return add_up(sums, values.subspan(i));
}

#endif

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

void add(std::span<float> sum, std::span<const float> in) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += in[i];
}

bool add_exchange(std::span<float> sum, std::span<float> in) {
  bool finite = true;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const float old = sum[i];
    sum[i] += in[i];
    in[i] = old;
    finite = finite && std::isfinite(sum[i]);
  }
  return finite;
}

void add_scale(std::span<float> sum, std::span<const float> in, float scale) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = (sum[i] + in[i]) * scale;
}

void scale(std::span<float> values, float scale) {
  for (float& value : values) value *= scale;
}

void maximum(std::span<float> maxima, std::span<const float> in) {
  for (std::size_t i = 0; i < maxima.size(); ++i) maxima[i] = maxima[i] < in[i] ? in[i] : maxima[i];
}

float largest_magnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

std::size_t first_nonfinite(std::span<const float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if ((std::bit_cast<std::uint32_t>(values[i]) & 0x7f800000) == 0x7f800000) return i;
  }
  return values.size();
}

std::size_t first_no_square(std::span<const float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] >= 0 && values[i] <= std::numeric_limits<float>::max())) return i;
  }
  return values.size();
}

double square_sum(std::span<const float> values) {
  std::array<double, kSquareSums> sums{};
  const std::size_t whole = values.size() / kSquareSums * kSquareSums;
  for (std::size_t i = 0; i < whole; ++i) {
    sums[i % kSquareSums] += static_cast<double>(values[i]) * values[i];
  }
  return add_up(sums, values.subspan(whole));
}

}  // namespace reference

THINREDUCE_KERNEL(add);
THINREDUCE_KERNEL(add_exchange);
THINREDUCE_KERNEL(add_scale);
THINREDUCE_KERNEL(scale);
THINREDUCE_KERNEL(maximum);
THINREDUCE_KERNEL(largest_magnitude);
THINREDUCE_KERNEL(first_nonfinite);
THINREDUCE_KERNEL(first_no_square);
THINREDUCE_KERNEL(square_sum);

void add(std::span<float> sum, std::span<const float> in) {
  ensure(sum.size() == in.size(), "add: spans must have the same length", sum.size(), in.size());
  THINREDUCE_CALL(add)(sum, in);
}

bool add_exchange(std::span<float> sum, std::span<float> in) {
  ensure(sum.size() == in.size(), "add_exchange: spans must have the same length", sum.size(),
         in.size());
  return THINREDUCE_CALL(add_exchange)(sum, in);
}

void add_scale(std::span<float> sum, std::span<const float> in, float scale) {
  ensure(sum.size() == in.size(), "add_scale: spans must have the same length", sum.size(),
         in.size());
  THINREDUCE_CALL(add_scale)(sum, in, scale);
}

void scale(std::span<float> values, float scale) {
  THINREDUCE_CALL(scale)(values, scale);
}

void maximum(std::span<float> maxima, std::span<const float> in) {
  ensure(maxima.size() == in.size(), "maximum: spans must have the same length", maxima.size(),
         in.size());
  THINREDUCE_CALL(maximum)(maxima, in);
}

float largest_magnitude(std::span<const float> values) {
  return THINREDUCE_CALL(largest_magnitude)(values);
}

std::size_t first_nonfinite(std::span<const float> values) {
  return THINREDUCE_CALL(first_nonfinite)(values);
}

std::size_t first_no_square(std::span<const float> values) {
  return THINREDUCE_CALL(first_no_square)(values);
}

double square_sum(std::span<const float> values) {
  return THINREDUCE_CALL(square_sum)(values);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
