#include "thinreduce/methods/quantize/dither.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "thinreduce/ensure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/methods/quantize/dither.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"
#include "thinreduce/methods/quantize/random-inl.h"

#ifndef THINREDUCE_KERNELS_DITHER_CONSTANTS
#define THINREDUCE_KERNELS_DITHER_CONSTANTS
namespace thinreduce::kernels {
// Adding 1.5 * 2^23 to a float of magnitude below 2^22 rounds it to an integer, ties to even, which
// is then in the low bits.
constexpr float kRounder = 12582912.0f;
constexpr std::uint32_t kRounderBits = 0x4b400000;
constexpr float kDitherSpacing = 1.0f / 65536;
constexpr float kDitherStart = 1.0f / 131072 - 0.5f;
// Two rows of kHalf elements use the halves of the same draws.
constexpr std::size_t kPair = 32;
constexpr std::size_t kHalf = 16;
// Prefetch distance in floats: callers work on pieces of about this size, so the next piece is
// loaded while this one is computed.
constexpr std::size_t kAhead = 2560;

// Returns the number of elements before the next whole pair of rows.
constexpr std::size_t until_pair(std::uint32_t first, std::size_t size) {
  return std::min<std::size_t>(size, (kPair - first % kPair) % kPair);
}

// sum of (code - zero) * 65536 - sum of d = codes * 65536 - sum of d - this, modulo 2^32.
constexpr std::uint32_t dequantize_bias(const DequantizeRun& run) {
  return run.zero * 65536u - static_cast<std::uint32_t>(run.keys.size()) * 32768u;
}
}  // namespace thinreduce::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, kHalf>;
using Words = hn::RebindToUnsigned<Floats>;
using Ints = hn::RebindToSigned<Floats>;

HWY_INLINE hn::Vec<Words> quantize_lanes(hn::Vec<Floats> value, hn::Vec<Words> d_bits,
                                         hn::Vec<Floats> inverse, hn::Vec<Floats> limit,
                                         hn::Vec<Words> bias) {
  const Floats floats;
  const auto d = hn::ConvertTo(floats, hn::BitCast(Ints(), d_bits));
  const auto u =
      hn::Add(hn::Mul(d, hn::Set(floats, kDitherSpacing)), hn::Set(floats, kDitherStart));
  const auto t = hn::Min(hn::Max(hn::Mul(value, inverse), hn::Neg(limit)), limit);
  const auto rounded = hn::Add(hn::Add(t, u), hn::Set(floats, kRounder));
  return hn::Sub(hn::BitCast(Words(), rounded), bias);
}

void quantize(std::span<const float> values, const QuantizeRun& run,
              std::span<std::uint32_t> codes) {
  const Floats floats;
  const Words words;
  const std::size_t lanes = hn::Lanes(floats);
  const std::size_t head = until_pair(run.first, values.size());
  reference::quantize(values.first(head), run, codes.first(head));
  const auto inverse = hn::Set(floats, run.inverse_step_size);
  const auto limit = hn::Set(floats, static_cast<float>(run.levels_per_side));
  const auto bias = hn::Set(words, kRounderBits - run.levels_per_side);
  const auto lower = hn::Set(words, 0xffff);
  const auto column = hn::Iota(words, 0);
  std::size_t i = head;
  const auto* in = values.data();
  auto* out = codes.data();
  std::uint32_t draw = (run.first + static_cast<std::uint32_t>(head)) / 2;
  for (; i + kPair <= values.size(); i += kPair, draw += kHalf) {
    hwy::Prefetch(in + i + kAhead);
    hwy::Prefetch(in + i + kAhead + kHalf);
    for (std::size_t lane = 0; lane < kHalf; lane += lanes) {
      const auto index = hn::Add(column, hn::Set(words, draw + static_cast<std::uint32_t>(lane)));
      const auto bits = random_bits(words, run.key, index);
      const std::size_t at = i + lane;
      hn::StoreU(
          quantize_lanes(hn::LoadU(floats, in + at), hn::And(bits, lower), inverse, limit, bias),
          words, out + at);
      hn::StoreU(quantize_lanes(hn::LoadU(floats, in + at + kHalf), hn::ShiftRight<16>(bits),
                                inverse, limit, bias),
                 words, out + at + kHalf);
    }
  }
  QuantizeRun rest = run;
  rest.first += static_cast<std::uint32_t>(i);
  reference::quantize(values.subspan(i), rest, codes.subspan(i));
}

void dequantize(std::span<const std::uint32_t> codes, const DequantizeRun& run,
                std::span<float> values) {
  const Floats floats;
  const Words words;
  const std::size_t lanes = hn::Lanes(floats);
  const std::size_t head = until_pair(run.first, values.size());
  reference::dequantize(codes.first(head), run, values.first(head));
  const auto factor = hn::Set(floats, run.step_size * kDitherSpacing);
  const auto halves = hn::Set(floats, 0.5f * static_cast<float>(run.keys.size()));
  const auto bias = hn::Set(words, dequantize_bias(run));
  const auto lower = hn::Set(words, 0xffff);
  const auto column = hn::Iota(words, 0);
  std::size_t i = head;
  const auto* in = codes.data();
  auto* out = values.data();
  std::uint32_t draw = (run.first + static_cast<std::uint32_t>(head)) / 2;
  for (; i + kPair <= values.size(); i += kPair, draw += kHalf) {
    hwy::Prefetch(out + i + kAhead);
    hwy::Prefetch(out + i + kAhead + kHalf);
    for (std::size_t lane = 0; lane < kHalf; lane += lanes) {
      const std::size_t at = i + lane;
      const auto index = hn::Add(column, hn::Set(words, draw + static_cast<std::uint32_t>(lane)));
      auto even = hn::Sub(hn::ShiftLeft<16>(hn::LoadU(words, in + at)), bias);
      auto odd = hn::Sub(hn::ShiftLeft<16>(hn::LoadU(words, in + at + kHalf)), bias);
      for (const RandomKey key : run.keys) {
        const auto bits = random_bits(words, key, index);
        even = hn::Sub(even, hn::And(bits, lower));
        odd = hn::Sub(odd, hn::ShiftRight<16>(bits));
      }
      const auto finish = [&](hn::Vec<Words> sum) HWY_ATTR {
        const auto exact = hn::ConvertTo(floats, hn::BitCast(Ints(), sum));
        return hn::Mul(hn::Sub(exact, halves), factor);
      };
      hn::StoreU(finish(even), floats, out + at);
      hn::StoreU(finish(odd), floats, out + at + kHalf);
    }
  }
  DequantizeRun rest = run;
  rest.first += static_cast<std::uint32_t>(i);
  reference::dequantize(codes.subspan(i), rest, values.subspan(i));
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

void quantize(std::span<const float> values, const QuantizeRun& run,
              std::span<std::uint32_t> codes) {
  const auto limit = static_cast<float>(run.levels_per_side);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float u = dither(run.key, run.first + static_cast<std::uint32_t>(i));
    const float t = std::min(std::max(values[i] * run.inverse_step_size, -limit), limit);
    const float rounded = t + u + kRounder;
    codes[i] = std::bit_cast<std::uint32_t>(rounded) - (kRounderBits - run.levels_per_side);
  }
}

void dequantize(std::span<const std::uint32_t> codes, const DequantizeRun& run,
                std::span<float> values) {
  const float factor = run.step_size * kDitherSpacing;
  const float halves = 0.5f * static_cast<float>(run.keys.size());
  const std::uint32_t bias = dequantize_bias(run);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    std::uint32_t sum = codes[i] * 65536u - bias;
    for (const RandomKey key : run.keys) {
      sum -= dither_bits(key, run.first + static_cast<std::uint32_t>(i));
    }
    values[i] = (static_cast<float>(static_cast<std::int32_t>(sum)) - halves) * factor;
  }
}

}  // namespace reference

THINREDUCE_KERNEL(quantize);
THINREDUCE_KERNEL(dequantize);

void quantize(std::span<const float> values, const QuantizeRun& run,
              std::span<std::uint32_t> codes) {
  ensure(values.size() == codes.size(), "quantize: spans must have the same length", values.size(),
         codes.size());
  THINREDUCE_CALL(quantize)(values, run, codes);
}

void dequantize(std::span<const std::uint32_t> codes, const DequantizeRun& run,
                std::span<float> values) {
  ensure(values.size() == codes.size(), "dequantize: spans must have the same length",
         values.size(), codes.size());
  THINREDUCE_CALL(dequantize)(codes, run, values);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
