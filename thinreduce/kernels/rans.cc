#include "thinreduce/kernels/rans.h"

#include <bit>

#include "thinreduce/ensure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/kernels/rans.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/compress-inl.h"
#include "thinreduce/kernels/dispatch.h"

#ifndef THINREDUCE_KERNELS_RANS_ONCE
#define THINREDUCE_KERNELS_RANS_ONCE
namespace thinreduce::kernels {
namespace {

// For every mask of eight 16-bit words, the bytes of the selected words, moved to the back.
alignas(64) constexpr auto kBackOrders = [] {
  std::array<std::array<std::uint8_t, 16>, 256> orders{};
  for (std::size_t mask = 0; mask < orders.size(); ++mask) {
    std::size_t next = 16;
    for (std::size_t word = 8; word-- > 0;) {
      if ((mask >> word & 1) == 0) continue;
      orders[mask][--next] = static_cast<std::uint8_t>(2 * word + 1);
      orders[mask][--next] = static_cast<std::uint8_t>(2 * word);
    }
  }
  return orders;
}();

}  // namespace
}  // namespace thinreduce::kernels
#endif  // THINREDUCE_KERNELS_RANS_ONCE

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX2

// Every lane is a state.
using States = hn::CappedTag<std::uint32_t, kRansWays>;
using StateVector = hn::Vec<States>;
static_assert(hn::MaxLanes(States()) == kRansWays);

HWY_INLINE StateVector two_entries(const RansEntry& low, const RansEntry& high) {
  const hn::Half<States> half;
  return hn::Combine(States(), hn::Load(half, &high.most), hn::Load(half, &low.most));
}

// Returns the high halves of the products.
HWY_INLINE StateVector multiply_high(StateVector a, StateVector b) {
  const States d;
  const hn::Repartition<std::uint64_t, States> wide;
  const auto odd_lanes = [&](StateVector v) HWY_ATTR {
    return hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, v)));
  };
  const auto even = hn::BitCast(d, hn::ShiftRight<32>(hn::MulEven(a, b)));
  const auto odd = hn::BitCast(d, hn::MulEven(odd_lanes(a), odd_lanes(b)));
  return hn::OddEven(odd, even);
}

// Eight groups at a time. Their entries do not depend on the states, so they are loaded while the
// states before them are still computed; a transposition yields one vector per constant.
std::size_t rans_encode(std::span<const RansEntry, 256> entries,
                        std::span<const std::uint8_t> groups, RansStates& states,
                        std::span<std::uint16_t> words) {
  const States d;
  const hn::RebindToSigned<States> integers;
  const hn::Rebind<std::uint16_t, States> halves;
  const hn::Repartition<std::uint8_t, decltype(halves)> bytes;
  const hn::Repartition<std::uint64_t, States> wide;
  const auto low_half = hn::Set(d, 0xffff);
  const std::size_t whole = groups.size() / kRansWays * kRansWays;
  const std::size_t last = reference::rans_encode(entries, groups.subspan(whole), states, words);
  std::uint16_t* const end = words.data() + words.size();
  std::uint16_t* to = end - last;
  auto state = hn::LoadU(d, states.data());
  for (std::size_t i = whole; i > 0; i -= kRansWays) {
    const std::uint8_t* const group = &groups[i - kRansWays];
    const auto a = two_entries(entries[group[0]], entries[group[4]]);
    const auto b = two_entries(entries[group[1]], entries[group[5]]);
    const auto c = two_entries(entries[group[2]], entries[group[6]]);
    const auto e = two_entries(entries[group[3]], entries[group[7]]);
    const auto ab_low = hn::BitCast(wide, hn::InterleaveLower(d, a, b));
    const auto ce_low = hn::BitCast(wide, hn::InterleaveLower(d, c, e));
    const auto ab_high = hn::BitCast(wide, hn::InterleaveUpper(d, a, b));
    const auto ce_high = hn::BitCast(wide, hn::InterleaveUpper(d, c, e));
    const auto most = hn::BitCast(d, hn::InterleaveLower(wide, ab_low, ce_low));
    const auto reciprocal = hn::BitCast(d, hn::InterleaveUpper(wide, ab_low, ce_low));
    const auto bias = hn::BitCast(d, hn::InterleaveLower(wide, ab_high, ce_high));
    const auto packed = hn::BitCast(d, hn::InterleaveUpper(wide, ab_high, ce_high));

    // Not a signed comparison: `most` may be 2^31.
    const auto full = hn::Eq(hn::Max(state, most), state);
    const auto emitting = front_lanes(d, full);
    const auto emitted = hn::DemoteTo(halves, hn::BitCast(integers, hn::And(state, low_half)));
    const auto order = hn::Load(bytes, kBackOrders[emitting].data());
    hn::StoreU(hn::TableLookupBytes(hn::BitCast(bytes, emitted), order), bytes,
               reinterpret_cast<std::uint8_t*>(to - kRansRoom));
    to -= count_front(d, emitting);

    const auto x = hn::IfThenElse(full, hn::ShiftRight<16>(state), state);
    const auto quotient = hn::Shr(multiply_high(x, reciprocal), hn::ShiftRight<16>(packed));
    state = hn::Add(hn::Add(x, bias), hn::Mul(quotient, hn::And(packed, low_half)));
  }
  hn::StoreU(state, d, states.data());
  return static_cast<std::size_t>(end - to);
}

#else

std::size_t rans_encode(std::span<const RansEntry, 256> entries,
                        std::span<const std::uint8_t> groups, RansStates& states,
                        std::span<std::uint16_t> words) {
  return reference::rans_encode(entries, groups, states, words);
}

#endif

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {

RansEntry rans_entry(std::uint32_t start, std::uint32_t count) {
  RansEntry entry;
  entry.most = count << (31 - kRansScaleBits);
  // x / count = x * reciprocal >> 32 + shift, for every x below 2^31.
  std::uint32_t shift = 0;
  if (count == 1) {
    // A reciprocal of 2^32 - 1 gives a quotient of x - 1; the bias corrects it.
    entry.reciprocal = 0xffffffff;
    entry.bias = start + kRansScale - 1;
  } else {
    const auto bits = static_cast<std::uint32_t>(std::bit_width(count - 1));
    entry.reciprocal =
        static_cast<std::uint32_t>(((std::uint64_t{1} << (bits + 31)) + count - 1) / count);
    shift = bits - 1;
    entry.bias = start;
  }
  entry.complement_and_shift = (kRansScale - count) | shift << 16;
  return entry;
}

namespace reference {

// A state always writes its lower half and advances only if it was too large: there is no
// unpredictable branch.
std::size_t rans_encode(std::span<const RansEntry, 256> entries,
                        std::span<const std::uint8_t> groups, RansStates& states,
                        std::span<std::uint16_t> words) {
  std::uint16_t* const end = words.data() + words.size();
  std::uint16_t* to = end;
  const auto put = [&](std::uint32_t& state, std::uint8_t group) {
    const RansEntry& entry = entries[group];
    to[-1] = static_cast<std::uint16_t>(state);
    const std::uint32_t full = state >= entry.most ? 1 : 0;
    to -= full;
    const std::uint32_t x = state >> (16 * full);
    const auto quotient =
        static_cast<std::uint32_t>(static_cast<std::uint64_t>(x) * entry.reciprocal >> 32) >>
        (entry.complement_and_shift >> 16);
    state = x + entry.bias + quotient * (entry.complement_and_shift & 0xffff);
  };
  RansStates state = states;
  std::size_t i = groups.size();
  for (; i % kRansWays != 0; --i) put(state[(i - 1) % kRansWays], groups[i - 1]);
  for (; i > 0; i -= kRansWays) {
    for (std::size_t way = kRansWays; way-- > 0;) put(state[way], groups[i - kRansWays + way]);
  }
  states = state;
  return static_cast<std::size_t>(end - to);
}

}  // namespace reference

THINREDUCE_KERNEL(rans_encode);

std::size_t rans_encode(std::span<const RansEntry, 256> entries,
                        std::span<const std::uint8_t> groups, RansStates& states,
                        std::span<std::uint16_t> words) {
  ensure(words.size() >= groups.size() + kRansRoom,
         "rans_encode: every group must have room for a word, and more", words.size(),
         groups.size());
  return THINREDUCE_CALL(rans_encode)(entries, groups, states, words);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
