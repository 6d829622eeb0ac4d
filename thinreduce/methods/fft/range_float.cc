#include "thinreduce/methods/fft/range_float.h"

#include <algorithm>
#include <array>
#include <bit>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/methods/fft/range_float.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// RangeFloat::encode in every lane.
void quantize(const RangeFloat& format, std::span<const float> values,
              std::span<std::uint16_t> codes) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> floats;
  const hn::RebindToSigned<decltype(floats)> integers;
  const hn::Rebind<std::uint16_t, decltype(floats)> words;
  const auto half_rung = hn::Set(integers, 1 << (format.shift() - 1));
  const auto below_first = hn::Set(integers, static_cast<int>(format.base) - 1);
  const auto half_eps = hn::Set(integers, static_cast<int>(magnitude(format.eps() / 2)));
  const auto positive = hn::Set(integers, static_cast<int>(format.positive));
  const auto negative = hn::Set(integers, static_cast<int>(format.negative));
  const auto zero = hn::Zero(integers);
  const auto one = hn::Set(integers, 1);
  const auto magnitude_bits = hn::Set(integers, 0x7fffffff);
  const std::size_t lanes = hn::Lanes(floats);
  for (; i + lanes <= values.size(); i += lanes) {
    const auto bits = hn::BitCast(integers, hn::LoadU(floats, &values[i]));
    const auto size = hn::And(bits, magnitude_bits);
    const auto minus = hn::Lt(bits, zero);
    const auto limit = hn::IfThenElse(minus, negative, positive);
    const auto rung =
        hn::Sub(hn::ShiftRightSame(hn::Add(size, half_rung), format.shift()), below_first);
    const auto code = hn::Min(hn::Max(rung, one), limit);
    const auto none = hn::Or(hn::Lt(size, half_eps), hn::Eq(limit, zero));
    const auto offset = hn::IfThenElseZero(minus, positive);
    hn::StoreU(hn::DemoteTo(words, hn::IfThenZeroElse(none, hn::Add(code, offset))), words,
               &codes[i]);
  }
#endif
  reference::quantize(format, values.subspan(i), codes.subspan(i));
}

// RangeFloat::decode in every lane.
void dequantize(const RangeFloat& format, std::span<const std::uint16_t> codes,
                std::span<float> values) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> floats;
  const hn::RebindToSigned<decltype(floats)> integers;
  const hn::Rebind<std::uint16_t, decltype(floats)> words;
  const auto below_first = hn::Set(integers, static_cast<int>(format.base) - 1);
  const auto positive = hn::Set(integers, static_cast<int>(format.positive));
  const auto sign = hn::Set(integers, static_cast<int>(0x80000000u));
  const std::size_t lanes = hn::Lanes(floats);
  for (; i + lanes <= values.size(); i += lanes) {
    const auto code = hn::PromoteTo(integers, hn::LoadU(words, &codes[i]));
    const auto minus = hn::Gt(code, positive);
    const auto rung = hn::Add(hn::Sub(code, hn::IfThenElseZero(minus, positive)), below_first);
    const auto size = hn::ShiftLeftSame(rung, format.shift());
    const auto bits = hn::Or(size, hn::IfThenElseZero(minus, sign));
    hn::StoreU(hn::BitCast(floats, hn::IfThenZeroElse(hn::Eq(code, hn::Zero(integers)), bits)),
               floats, &values[i]);
  }
#endif
  reference::dequantize(format, codes.subspan(i), values.subspan(i));
}

// Strict comparisons never select a zero of either sign, so the order of zeros does not matter.
ValueRange range_of(std::span<const float> values) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  auto min = hn::Zero(d);
  auto max = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    const auto value = hn::LoadU(d, &values[i]);
    min = hn::IfThenElse(hn::Lt(value, min), value, min);
    max = hn::IfThenElse(hn::Lt(max, value), value, max);
  }
  const ValueRange rest = reference::range_of(values.subspan(i));
  return {std::min(rest.min, hn::GetLane(hn::MinOfLanes(d, min))),
          std::max(rest.max, hn::GetLane(hn::MaxOfLanes(d, max)))};
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace {

constexpr std::uint32_t kLargestFinite = 0x7f7fffff;

// Excludes subnormal floats: many CPUs are slow with them, some flush them to zero.
std::uint32_t min_base(int mantissa) {
  return 1u << mantissa;
}

// Returns the rung nearest to a value, or the last finite one.
std::uint32_t rung_of(float value, int shift) {
  const std::uint32_t half = 1u << (shift - 1);
  return std::min((magnitude(value) + half) >> shift, kLargestFinite >> shift);
}

double squared_error(const RangeFloat& format, std::span<const float> sample) {
  constexpr std::size_t kRun = 256;
  std::array<std::uint16_t, kRun> codes;
  std::array<float, kRun> decoded;
  double sum = 0;
  for (std::size_t first = 0; first < sample.size(); first += kRun) {
    const auto run = sample.subspan(first, std::min(kRun, sample.size() - first));
    kernels::quantize(format, run, std::span(codes).first(run.size()));
    kernels::dequantize(format, std::span(codes).first(run.size()),
                        std::span(decoded).first(run.size()));
    for (std::size_t i = 0; i < run.size(); ++i) {
      const double error = static_cast<double>(run[i]) - decoded[i];
      sum += error * error;
    }
  }
  return sum;
}

}  // namespace

// With T+ and T- the rungs of the two ends, the ladders from `base` up to them have
// T+ + T- + 2 - 2*base codes, which must not exceed 2^N - 1. If that lifts `base` above the shorter
// side, that side gets one code, -eps or eps, and the longer one all others.
RangeFloat RangeFloat::covering(ValueRange range, int bits, int mantissa) {
  ensure(bits >= kMinRangeBits && bits <= kMaxRangeBits, "a range float must have 4 to 16 bits",
         bits);
  ensure(mantissa >= 0 && mantissa < kMaxRangeBits,
         "a range float's mantissa must have 0 to 15 bits", mantissa);
  RangeFloat format{bits, mantissa, min_base(mantissa), 0, 0};
  const std::int64_t codes = (std::int64_t{1} << bits) - 1;
  const bool has_positive = range.max > 0;
  const bool has_negative = range.min < 0;
  const std::int64_t up = has_positive ? rung_of(range.max, format.shift()) : 0;
  const std::int64_t down = has_negative ? rung_of(range.min, format.shift()) : 0;
  const std::int64_t longer = std::max(up, down);
  std::int64_t base = format.base;
  if (has_positive && has_negative) {
    base = std::max(base, (up + down + 2 - codes + 1) >> 1);
    if (base > std::min(up, down)) base = std::max<std::int64_t>(format.base, longer + 2 - codes);
  } else {
    base = std::max(base, longer + 1 - codes);
  }
  format.base = static_cast<std::uint32_t>(base);
  const auto ladder = [&](bool used, std::int64_t top) {
    return used ? static_cast<std::uint32_t>(std::max<std::int64_t>(top - base + 1, 1)) : 0u;
  };
  format.positive = ladder(has_positive, up);
  format.negative = ladder(has_negative, down);
  return format;
}

RangeFloat RangeFloat::fitting(ValueRange range, int bits, std::span<const float> sample) {
  RangeFloat best = covering(range, bits, 0);
  double best_error = squared_error(best, sample);
  for (int mantissa = 1; mantissa < bits; ++mantissa) {
    const RangeFloat next = covering(range, bits, mantissa);
    const double error = squared_error(next, sample);
    if (error >= best_error) continue;
    best_error = error;
    best = next;
  }
  return best;
}

bool RangeFloat::valid() const {
  if (bits < kMinRangeBits || bits > kMaxRangeBits) return false;
  if (mantissa < 0 || mantissa >= kMaxRangeBits) return false;
  const std::uint64_t last = kLargestFinite >> shift();
  const std::uint64_t longer = std::max(positive, negative);
  return base >= min_base(mantissa) && base <= last && longer <= last - base + 1 &&
         std::uint64_t{positive} + negative < (std::uint64_t{1} << bits);
}

float RangeFloat::eps() const {
  return std::bit_cast<float>(base << shift());
}

float RangeFloat::largest() const {
  const std::uint32_t longer = std::max(positive, negative);
  return longer == 0 ? 0 : std::bit_cast<float>((base + longer - 1) << shift());
}

std::uint16_t RangeFloat::encode(float value) const {
  const std::uint32_t size = magnitude(value);
  const bool minus = std::bit_cast<std::uint32_t>(value) >> 31 != 0;
  const std::uint32_t limit = minus ? negative : positive;
  if (limit == 0 || size < magnitude(eps() / 2)) return 0;
  const std::uint32_t rung = std::max((size + (1u << (shift() - 1))) >> shift(), base);
  return static_cast<std::uint16_t>(std::min(rung - base + 1, limit) + (minus ? positive : 0));
}

float RangeFloat::decode(std::uint16_t code) const {
  if (code == 0) return 0;
  const bool minus = code > positive;
  const std::uint32_t rung = base + code - 1u - (minus ? positive : 0);
  return std::bit_cast<float>(rung << shift() | (minus ? 0x80000000u : 0u));
}

namespace reference {

void quantize(const RangeFloat& format, std::span<const float> values,
              std::span<std::uint16_t> codes) {
  for (std::size_t i = 0; i < values.size(); ++i) codes[i] = format.encode(values[i]);
}

void dequantize(const RangeFloat& format, std::span<const std::uint16_t> codes,
                std::span<float> values) {
  for (std::size_t i = 0; i < codes.size(); ++i) values[i] = format.decode(codes[i]);
}

ValueRange range_of(std::span<const float> values) {
  ValueRange range;
  for (const float value : values) {
    if (value < range.min) range.min = value;
    if (value > range.max) range.max = value;
  }
  return range;
}

}  // namespace reference

THINREDUCE_KERNEL(quantize);
THINREDUCE_KERNEL(dequantize);
THINREDUCE_KERNEL(range_of);

void quantize(const RangeFloat& format, std::span<const float> values,
              std::span<std::uint16_t> codes) {
  ensure(values.size() == codes.size(), "quantize: each value must have a code", values.size(),
         codes.size());
  THINREDUCE_CALL(quantize)(format, values, codes);
}

void dequantize(const RangeFloat& format, std::span<const std::uint16_t> codes,
                std::span<float> values) {
  ensure(values.size() == codes.size(), "dequantize: each code must have a value", values.size(),
         codes.size());
  THINREDUCE_CALL(dequantize)(format, codes, values);
}

ValueRange range_of(std::span<const float> values) {
  return THINREDUCE_CALL(range_of)(values);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
