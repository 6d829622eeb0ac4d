// Moves the lanes of a vector that a mask selects to its front. Only .cc files of kernels include
// this, after highway.h.
//
// hn::Compress of Highway 1.0 keeps its table in a local variable, which GCC copies to the stack
// for every call where the instruction set has no such instruction.

#ifndef THINREDUCE_KERNELS_COMPRESS_ORDERS_
#define THINREDUCE_KERNELS_COMPRESS_ORDERS_
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace thinreduce::kernels {

// For every mask of `lanes` lanes, the numbers of its selected lanes, then zeros. Static, because
// GCC exports inline variables of templates from a shared library.
template <std::size_t lanes>
alignas(64) static constexpr auto kFrontOrders = [] {
  std::array<std::array<std::uint32_t, lanes>, std::size_t{1} << lanes> orders{};
  for (std::size_t mask = 0; mask < orders.size(); ++mask) {
    std::size_t next = 0;
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      if ((mask >> lane & 1) != 0) orders[mask][next++] = lane;
    }
  }
  return orders;
}();

}  // namespace thinreduce::kernels
#endif  // THINREDUCE_KERNELS_COMPRESS_ORDERS_

#if defined(THINREDUCE_KERNELS_COMPRESS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINREDUCE_KERNELS_COMPRESS_INL_H_
#undef THINREDUCE_KERNELS_COMPRESS_INL_H_
#else
#define THINREDUCE_KERNELS_COMPRESS_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {

// D is a tag of floats or integers of 32 bits, of a mask. Functions instead of a class, because
// vectors and masks of SVE can't be members.
template <class D>
inline constexpr bool kFrontByTable =
    !HWY_HAVE_SCALABLE &&
    (hwy::HWY_NAMESPACE::MaxLanes(D()) == 4 || hwy::HWY_NAMESPACE::MaxLanes(D()) == 8);

// Returns the lanes that a mask selects, for the functions below: as bits where a table has their
// order, otherwise the mask.
template <class D>
HWY_INLINE auto front_lanes(D d, hwy::HWY_NAMESPACE::Mask<D> mask) {
  if constexpr (kFrontByTable<D>) {
    std::uint64_t bits = 0;
    std::uint8_t bytes[8] = {};
    hwy::HWY_NAMESPACE::StoreMaskBits(d, mask, bytes);
    std::memcpy(&bits, bytes, sizeof(bits));
    return bits;
  } else {
    return mask;
  }
}

// Returns the number of selected lanes.
template <class D, class Lanes>
HWY_INLINE std::size_t count_front(D d, Lanes lanes) {
  if constexpr (kFrontByTable<D>) {
    return static_cast<std::size_t>(std::popcount(lanes));
  } else {
    return hwy::HWY_NAMESPACE::CountTrue(d, lanes);
  }
}

// Moves the selected lanes of `v` to its front. The lanes after them are undefined.
template <class D, class Lanes, class DV>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<DV> to_front(D /*of the mask*/, Lanes lanes, DV d,
                                                hwy::HWY_NAMESPACE::Vec<DV> v) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (kFrontByTable<D>) {
    const hn::Rebind<float, D> floats;
    const hn::RebindToUnsigned<decltype(floats)> integers;
    const auto order = hn::IndicesFromVec(
        floats, hn::Load(integers, kFrontOrders<hn::MaxLanes(D())>[lanes].data()));
    return hn::BitCast(d, hn::TableLookupLanes(hn::BitCast(floats, v), order));
  } else {
    return hn::Compress(v, hn::RebindMask(d, lanes));
  }
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
