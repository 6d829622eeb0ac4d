// random_bits() of random.h for Highway vectors; included by kernels after highway.h.

#if defined(THINREDUCE_KERNELS_RANDOM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THINREDUCE_KERNELS_RANDOM_INL_H
#undef THINREDUCE_KERNELS_RANDOM_INL_H
#else
#define THINREDUCE_KERNELS_RANDOM_INL_H
#endif

#include "hwy/highway.h"
#include "thinreduce/kernels/random.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {

// Returns one draw per lane; `d` is a tag of std::uint32_t.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V random_bits(D d, RandomKey key, V index) {
  namespace hn = hwy::HWY_NAMESPACE;
  auto x = hn::Xor(index, hn::Set(d, key.first));
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Mul(x, hn::Set(d, kRandomFirstFactor));
  x = hn::Xor(x, hn::Set(d, key.second));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  x = hn::Mul(x, hn::Set(d, kRandomSecondFactor));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
