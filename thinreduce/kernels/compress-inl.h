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

// Per mask of so many lanes: the selected lanes, then zeros.
template <std::size_t lanes>
alignas(64) inline constexpr auto kFrontOrders = [] {
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

// D is a tag of floats or integers of 32 bits.
template <class D>
class ToFront {
  using Floats = hwy::HWY_NAMESPACE::Rebind<float, D>;
  using Integers = hwy::HWY_NAMESPACE::RebindToUnsigned<Floats>;
  static constexpr std::size_t kMaxLanes = hwy::HWY_NAMESPACE::MaxLanes(D());
  static constexpr bool kByTable = !HWY_HAVE_SCALABLE && (kMaxLanes == 4 || kMaxLanes == 8);

 public:
  using Mask = hwy::HWY_NAMESPACE::Mask<D>;

  HWY_INLINE explicit ToFront(Mask mask) : mask_(mask) {
    if constexpr (kByTable) {
      std::uint8_t bytes[8] = {};
      hwy::HWY_NAMESPACE::StoreMaskBits(D(), mask, bytes);
      std::memcpy(&bits_, bytes, sizeof(bits_));
    }
  }
  // Returns the number of selected lanes.
  [[nodiscard]] HWY_INLINE std::size_t count() const {
    if constexpr (kByTable) return static_cast<std::size_t>(std::popcount(bits_));
    return hwy::HWY_NAMESPACE::CountTrue(D(), mask_);
  }
  // The lanes after the selected ones are undefined.
  template <class DV>
  [[nodiscard]] HWY_INLINE hwy::HWY_NAMESPACE::Vec<DV> move(DV d,
                                                            hwy::HWY_NAMESPACE::Vec<DV> v) const {
    namespace hn = hwy::HWY_NAMESPACE;
    if constexpr (kByTable) {
      const auto order =
          hn::IndicesFromVec(Floats(), hn::Load(Integers(), kFrontOrders<kMaxLanes>[bits_].data()));
      return hn::BitCast(d, hn::TableLookupLanes(hn::BitCast(Floats(), v), order));
    } else {
      return hn::Compress(v, hn::RebindMask(d, mask_));
    }
  }

 private:
  Mask mask_;
  std::uint64_t bits_ = 0;
};

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
