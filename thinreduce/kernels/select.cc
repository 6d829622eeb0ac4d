#include "thinreduce/kernels/select.h"

#include <array>
#include <utility>

#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/kernels/select.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using Integers = hn::RebindToSigned<Floats>;

// The scan both kernels share. `next(i)` gives the vector at element i. Four vectors are looked at
// together, because at the densities that matter most quadruples have no candidate at all.
//
// A compressed store writes a whole vector at the position of the next candidate, which is never
// ahead of the element that was read: it stays inside `out`, which is as long as the run.
template <typename Next>
HWY_INLINE std::size_t scan(std::size_t elements, std::uint32_t first, std::uint32_t least,
                            Candidates out, std::size_t& count, Next&& next) {
  const Floats floats;
  const Words words;
  const Integers integers;
  const std::size_t lanes = hn::Lanes(floats);
  const auto iota = hn::Iota(words, first);
  const auto below = hn::Set(integers, static_cast<std::int32_t>(least) - 1);
  const auto is_large = [&](hn::Vec<Floats> value) HWY_ATTR {
    return hn::Gt(hn::BitCast(integers, hn::Abs(value)), below);
  };
  const auto keep = [&](hn::Vec<Floats> value, hn::Mask<Integers> mask, std::size_t at) HWY_ATTR {
    const auto index = hn::Add(iota, hn::Set(words, static_cast<std::uint32_t>(at)));
    hn::CompressStore(index, hn::RebindMask(words, mask), words, &out.indices[count]);
    count += hn::CompressStore(value, hn::RebindMask(floats, mask), floats, &out.values[count]);
  };
  std::size_t i = 0;
  for (; i + 4 * lanes <= elements; i += 4 * lanes) {
    const auto a = next(i);
    const auto b = next(i + lanes);
    const auto c = next(i + 2 * lanes);
    const auto d = next(i + 3 * lanes);
    const auto in_a = is_large(a);
    const auto in_b = is_large(b);
    const auto in_c = is_large(c);
    const auto in_d = is_large(d);
    if (hn::AllFalse(integers, hn::Or(hn::Or(in_a, in_b), hn::Or(in_c, in_d)))) continue;
    keep(a, in_a, i);
    keep(b, in_b, i + lanes);
    keep(c, in_c, i + 2 * lanes);
    keep(d, in_d, i + 3 * lanes);
  }
  return i;
}

std::size_t collect(std::span<const float> run, std::uint32_t first, std::uint32_t least,
                    Candidates out) {
  std::size_t count = 0;
  const std::size_t done = scan(run.size(), first, least, out, count, [&](std::size_t i) HWY_ATTR {
    return hn::LoadU(Floats(), &run[i]);
  });
  return count + reference::collect(run.subspan(done), first + static_cast<std::uint32_t>(done),
                                    least, {out.indices.subspan(count), out.values.subspan(count)});
}

std::size_t add_collect(std::span<float> run, std::span<const float> addend, std::uint32_t first,
                        std::uint32_t least, Candidates out) {
  std::size_t count = 0;
  const std::size_t done = scan(run.size(), first, least, out, count, [&](std::size_t i) HWY_ATTR {
    const Floats floats;
    const auto sum = hn::Add(hn::LoadU(floats, &run[i]), hn::LoadU(floats, &addend[i]));
    hn::StoreU(sum, floats, &run[i]);
    return sum;
  });
  return count + reference::add_collect(run.subspan(done), addend.subspan(done),
                                        first + static_cast<std::uint32_t>(done), least,
                                        {out.indices.subspan(count), out.values.subspan(count)});
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

std::size_t collect(std::span<const float> run, std::uint32_t first, std::uint32_t least,
                    Candidates out) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < run.size(); ++i) {
    if (magnitude(run[i]) < least) continue;
    out.indices[count] = first + static_cast<std::uint32_t>(i);
    out.values[count] = run[i];
    ++count;
  }
  return count;
}

std::size_t add_collect(std::span<float> run, std::span<const float> addend, std::uint32_t first,
                        std::uint32_t least, Candidates out) {
  reference::add(run, addend);
  return reference::collect(run, first, least, out);
}

}  // namespace reference

THINREDUCE_KERNEL(collect);
THINREDUCE_KERNEL(add_collect);

std::size_t collect(std::span<const float> run, std::uint32_t first, std::uint32_t least,
                    Candidates out) {
  ensure(out.indices.size() >= run.size() && out.values.size() >= run.size(),
         "collect: room for the whole run");
  return THINREDUCE_CALL(collect)(run, first, least, out);
}

std::size_t add_collect(std::span<float> run, std::span<const float> addend, std::uint32_t first,
                        std::uint32_t least, Candidates out) {
  ensure(run.size() == addend.size(), "add_collect: spans of the same length");
  ensure(out.indices.size() >= run.size() && out.values.size() >= run.size(),
         "add_collect: room for the whole run");
  return THINREDUCE_CALL(add_collect)(run, addend, first, least, out);
}

// The 31 bits of a magnitude are decided 11, 10 and 10 at a time, from the top: each round counts
// the values that agree with the bits decided so far by their next digit.
std::uint32_t kth_magnitude(std::span<const float> values, std::size_t k) {
  ensure(k >= 1 && k <= values.size(), "kth_magnitude: k between 1 and the number of values");
  std::uint32_t decided = 0;
  std::size_t wanted = k;  // the answer is the wanted-th largest of those that agree
  for (const auto& [shift, bits] : {std::pair{20, 11}, {10, 10}, {0, 10}}) {
    std::array<std::uint32_t, 2048> histogram{};
    const std::uint32_t mask = (1u << bits) - 1;
    for (const float value : values) {
      const std::uint32_t digits = magnitude(value) >> shift;
      histogram[digits & mask] += (digits >> bits) == decided;
    }
    std::uint32_t digit = mask;
    while (histogram[digit] < wanted) wanted -= histogram[digit--];
    decided = decided << bits | digit;
  }
  return decided;
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
