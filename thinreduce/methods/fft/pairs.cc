#include "thinreduce/methods/fft/pairs.h"

#include <algorithm>
#include <array>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/methods/fft/pairs.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/compress-inl.h"
#include "thinreduce/kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

CollectedPairs collect_pairs(std::span<const float> spectrum, const Thresholds& thresholds,
                             const PairRoom& room) {
  return reference::collect_pairs(spectrum, thresholds, room);
}

#else

// There are 16 running sums, one per column, whatever the vector width: the same bits on all
// targets. There are no branches that depend on which pairs are collected: they would be
// mispredicted too often.
CollectedPairs collect_pairs(std::span<const float> spectrum, const Thresholds& thresholds,
                             const PairRoom& room) {
  const hn::CappedTag<float, kColumns> floats;
  const hn::RebindToSigned<decltype(floats)> integers;
  const hn::Rebind<std::uint16_t, decltype(floats)> words;
  const std::size_t lanes = hn::Lanes(floats);
  const auto scale = hn::Set(floats, thresholds.scale);
  // Not hn::Abs: a compiler may take it for needless after squares, which is wrong for a NaN.
  const auto magnitude = hn::Set(integers, 0x7FFFFFFF);
  const auto below_low = hn::Set(integers, static_cast<std::int32_t>(thresholds.low) - 1);
  const auto below_high = hn::Set(integers, static_cast<std::int32_t>(thresholds.high) - 1);
  std::uint16_t* HWY_RESTRICT const positions = room.positions.data();
  float* HWY_RESTRICT const values = room.values.data();
  float* HWY_RESTRICT const energies = room.energies.data();
  float* HWY_RESTRICT const between = room.between.data();
  CollectedPairs found;
  alignas(64) std::array<float, kColumns> sums{};
  auto position = hn::Iota(integers, 0);
  for (std::size_t row = 0; row < spectrum.size(); row += 2 * kColumns) {
    for (std::size_t lane = 0; lane < kColumns; lane += lanes) {
      const auto re = hn::LoadU(floats, &spectrum[row + lane]);
      const auto im = hn::LoadU(floats, &spectrum[row + kColumns + lane]);
      const auto scaled_re = hn::Mul(re, scale);
      const auto scaled_im = hn::Mul(im, scale);
      const auto energy = hn::Add(hn::Mul(scaled_re, scaled_re), hn::Mul(scaled_im, scaled_im));
      hn::Store(hn::Add(hn::Load(floats, &sums[lane]), energy), floats, &sums[lane]);
      const auto bits = hn::And(hn::BitCast(integers, energy), magnitude);
      const auto low = hn::Gt(bits, below_low);
      const auto collected = front_lanes(integers, low);
      hn::StoreInterleaved2(to_front(integers, collected, floats, re),
                            to_front(integers, collected, floats, im), floats,
                            values + 2 * found.pairs);
      hn::StoreU(to_front(integers, collected, floats, energy), floats, energies + found.pairs);
      hn::StoreU(hn::DemoteTo(words, to_front(integers, collected, integers, position)), words,
                 positions + found.pairs);
      const auto middle = front_lanes(integers, hn::AndNot(hn::Gt(bits, below_high), low));
      hn::StoreU(to_front(integers, middle, floats, energy), floats, between + found.between);
      found.pairs += count_front(integers, collected);
      found.between += count_front(integers, middle);
      position = hn::Add(position, hn::Set(integers, static_cast<std::int32_t>(lanes)));
    }
  }
  for (const float part : sums) found.energy += part;
  return found;
}

#endif

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

CollectedPairs collect_pairs(std::span<const float> spectrum, const Thresholds& thresholds,
                             const PairRoom& room) {
  CollectedPairs found;
  std::array<float, kColumns> sums{};
  for (std::size_t pair = 0; pair < spectrum.size() / 2; ++pair) {
    const float energy = pair_energy(spectrum, pair, thresholds.scale);
    sums[pair % kColumns] += energy;
    const std::uint32_t bits = magnitude(energy);
    if (bits < thresholds.low) continue;
    room.positions[found.pairs] = static_cast<std::uint16_t>(pair);
    room.values[2 * found.pairs] = spectrum[pair_offset(pair)];
    room.values[2 * found.pairs + 1] = spectrum[pair_offset(pair) + kColumns];
    room.energies[found.pairs++] = energy;
    if (bits < thresholds.high) room.between[found.between++] = energy;
  }
  for (const float part : sums) found.energy += part;
  return found;
}

}  // namespace reference

THINREDUCE_KERNEL(collect_pairs);

CollectedPairs collect_pairs(std::span<const float> spectrum, const Thresholds& thresholds,
                             const PairRoom& room) {
  const std::size_t pairs = spectrum.size() / 2;
  ensure(spectrum.size() % (2 * kColumns) == 0 && pairs <= std::size_t{1} << 16,
         "collect_pairs: a spectrum must have whole double rows and at most 2^16 pairs",
         spectrum.size());
  const std::size_t room_pairs = std::min(
      {room.positions.size(), room.values.size() / 2, room.energies.size(), room.between.size()});
  ensure(room_pairs >= pairs + kPairSlack,
         "collect_pairs: the room must suffice for all pairs and a vector", room_pairs, pairs);
  return THINREDUCE_CALL(collect_pairs)(spectrum, thresholds, room);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
