#include "thinreduce/kernels/bf16.h"

#include <cstddef>

#include "thinreduce/ensure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/kernels/bf16.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using Halves = hn::Rebind<std::uint16_t, Words>;

// As bf16_of() does.
HWY_INLINE hn::Vec<Halves> round_to_bf16(hn::Vec<Floats> value) {
  const Words words;
  const auto bits = hn::BitCast(words, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff)));
  const auto nan = hn::RebindMask(words, hn::IsNaN(value));
  const auto upper = hn::IfThenElse(nan, hn::Set(words, 0x7fc0), hn::ShiftRight<16>(rounded));
  return hn::TruncateTo(Halves(), upper);
}

HWY_INLINE hn::Vec<Floats> widen(hn::Vec<Halves> value) {
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), value)));
}

void to_bf16(std::span<const float> in, std::span<std::uint16_t> out) {
  const Floats floats;
  const std::size_t lanes = hn::Lanes(floats);
  std::size_t i = 0;
  for (; i + lanes <= in.size(); i += lanes) {
    hn::StoreU(round_to_bf16(hn::LoadU(floats, &in[i])), Halves(), &out[i]);
  }
  reference::to_bf16(in.subspan(i), out.subspan(i));
}

void from_bf16(std::span<const std::uint16_t> in, float scale, std::span<float> out) {
  const Floats floats;
  const std::size_t lanes = hn::Lanes(floats);
  const auto factor = hn::Set(floats, scale);
  std::size_t i = 0;
  for (; i + lanes <= in.size(); i += lanes) {
    hn::StoreU(hn::Mul(widen(hn::LoadU(Halves(), &in[i])), factor), floats, &out[i]);
  }
  reference::from_bf16(in.subspan(i), scale, out.subspan(i));
}

void add_bf16(std::span<const std::uint16_t> in, std::span<float> sum) {
  const Floats floats;
  const std::size_t lanes = hn::Lanes(floats);
  std::size_t i = 0;
  for (; i + lanes <= in.size(); i += lanes) {
    const auto added = hn::Add(hn::LoadU(floats, &sum[i]), widen(hn::LoadU(Halves(), &in[i])));
    hn::StoreU(added, floats, &sum[i]);
  }
  reference::add_bf16(in.subspan(i), sum.subspan(i));
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

void to_bf16(std::span<const float> in, std::span<std::uint16_t> out) {
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = bf16_of(in[i]);
}

void from_bf16(std::span<const std::uint16_t> in, float scale, std::span<float> out) {
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = float_of(in[i]) * scale;
}

void add_bf16(std::span<const std::uint16_t> in, std::span<float> sum) {
  for (std::size_t i = 0; i < in.size(); ++i) sum[i] += float_of(in[i]);
}

}  // namespace reference

THINREDUCE_KERNEL(to_bf16);
THINREDUCE_KERNEL(from_bf16);
THINREDUCE_KERNEL(add_bf16);

void to_bf16(std::span<const float> in, std::span<std::uint16_t> out) {
  ensure(in.size() == out.size(), "to_bf16: spans must have the same length", in.size(),
         out.size());
  THINREDUCE_CALL(to_bf16)(in, out);
}

void from_bf16(std::span<const std::uint16_t> in, float scale, std::span<float> out) {
  ensure(in.size() == out.size(), "from_bf16: spans must have the same length", in.size(),
         out.size());
  THINREDUCE_CALL(from_bf16)(in, scale, out);
}

void add_bf16(std::span<const std::uint16_t> in, std::span<float> sum) {
  ensure(in.size() == sum.size(), "add_bf16: spans must have the same length", in.size(),
         sum.size());
  THINREDUCE_CALL(add_bf16)(in, sum);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
