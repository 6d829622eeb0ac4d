#include "thinreduce/methods/sketch/momentum.h"

#include "thinreduce/ensure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/methods/sketch/momentum.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void take_in(const Momentum& into, std::span<const float> gradient, float momentum) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, momentum);
  std::size_t i = 0;
  for (; i + lanes <= gradient.size(); i += lanes) {
    const auto velocity =
        hn::Add(hn::Mul(factor, hn::LoadU(d, &into.velocity[i])), hn::LoadU(d, &gradient[i]));
    hn::StoreU(velocity, d, &into.velocity[i]);
    hn::StoreU(hn::Add(hn::LoadU(d, &into.sum[i]), velocity), d, &into.sum[i]);
  }
  reference::take_in({into.velocity.subspan(i), into.sum.subspan(i)}, gradient.subspan(i),
                     momentum);
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

void take_in(const Momentum& into, std::span<const float> gradient, float momentum) {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    into.velocity[i] = momentum * into.velocity[i] + gradient[i];
    into.sum[i] += into.velocity[i];
  }
}

}  // namespace reference

THINREDUCE_KERNEL(take_in);

void take_in(const Momentum& into, std::span<const float> gradient, float momentum) {
  ensure(into.velocity.size() == gradient.size() && into.sum.size() == gradient.size(),
         "take_in: spans must have the same length", into.velocity.size(), into.sum.size(),
         gradient.size());
  THINREDUCE_CALL(take_in)(into, gradient, momentum);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
