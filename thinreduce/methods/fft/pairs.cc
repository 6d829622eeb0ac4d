#include "thinreduce/methods/fft/pairs.h"

#include <array>
#include <cstring>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/methods/fft/pairs.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// There are 16 running sums, one per column, whatever the vector width: the same bits on all
// targets.
double mark(std::span<const float> spectrum, const Thresholds& thresholds,
            std::span<std::uint64_t> at_least_low, std::span<std::uint64_t> at_least_high) {
  const hn::CappedTag<float, 16> floats;
  const hn::RebindToSigned<decltype(floats)> integers;
  const std::size_t lanes = hn::Lanes(floats);
  const auto scale = hn::Set(floats, thresholds.scale);
  const auto below_low = hn::Set(integers, static_cast<std::int32_t>(thresholds.low) - 1);
  const auto below_high = hn::Set(integers, static_cast<std::int32_t>(thresholds.high) - 1);
  const auto bits_of = [&](hn::Mask<decltype(integers)> mask) HWY_ATTR {
    std::uint8_t bytes[8] = {};
    hn::StoreMaskBits(integers, mask, bytes);
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes, sizeof(bits));
    return bits;
  };
  alignas(64) std::array<float, 16> sums{};
  for (std::size_t word = 0; word < at_least_low.size(); ++word) {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    for (std::size_t row = 0; row < 4; ++row) {
      const float* first = &spectrum[word * 128 + row * 32];
      for (std::size_t lane = 0; lane < 16; lane += lanes) {
        const auto re = hn::Mul(hn::LoadU(floats, first + lane), scale);
        const auto im = hn::Mul(hn::LoadU(floats, first + 16 + lane), scale);
        const auto energy = hn::Add(hn::Mul(re, re), hn::Mul(im, im));
        hn::Store(hn::Add(hn::Load(floats, &sums[lane]), energy), floats, &sums[lane]);
        const auto bits = hn::BitCast(integers, hn::Abs(energy));
        low |= bits_of(hn::Gt(bits, below_low)) << (row * 16 + lane);
        high |= bits_of(hn::Gt(bits, below_high)) << (row * 16 + lane);
      }
    }
    at_least_low[word] = low;
    at_least_high[word] = high;
  }
  double sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

double mark(std::span<const float> spectrum, const Thresholds& thresholds,
            std::span<std::uint64_t> at_least_low, std::span<std::uint64_t> at_least_high) {
  std::array<float, 16> sums{};
  for (std::size_t word = 0; word < at_least_low.size(); ++word) {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    for (std::size_t bit = 0; bit < kPairsPerWord; ++bit) {
      const float energy = pair_energy(spectrum, word * kPairsPerWord + bit, thresholds.scale);
      sums[bit % 16] += energy;
      const std::uint32_t bits = magnitude(energy);
      low |= std::uint64_t{bits >= thresholds.low} << bit;
      high |= std::uint64_t{bits >= thresholds.high} << bit;
    }
    at_least_low[word] = low;
    at_least_high[word] = high;
  }
  double sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

}  // namespace reference

THINREDUCE_KERNEL(mark);

double mark(std::span<const float> spectrum, const Thresholds& thresholds,
            std::span<std::uint64_t> at_least_low, std::span<std::uint64_t> at_least_high) {
  ensure(
      spectrum.size() == 128 * at_least_low.size() && at_least_low.size() == at_least_high.size(),
      "mark: 128 floats per word", spectrum.size(), at_least_low.size(), at_least_high.size());
  return THINREDUCE_CALL(mark)(spectrum, thresholds, at_least_low, at_least_high);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
