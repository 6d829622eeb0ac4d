#include "thinreduce/kernels/select.h"

#include <cstring>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/kernels/select.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that the masks of four vectors fit into 64 bits.
using Floats = hn::CappedTag<float, 16>;
using Integers = hn::RebindToSigned<Floats>;

// Returns lane i of the mask in bit i.
HWY_INLINE std::uint64_t bits_of(hn::Mask<Integers> mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(Integers(), mask, bytes);
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

// The scan that both kernels share; returns the number of elements scanned. `next(i)` returns the
// vector at element i and stores it to run[i]. Four vectors are tested together, because at typical
// densities most quadruples have at most one candidate. For the same reason candidates are written
// one by one: compressed stores gain nothing at 1 % with AVX-512 and are several times slower with
// AVX2, which has to look up a permutation.
template <typename Next>
HWY_INLINE std::size_t scan(std::span<const float> run, std::uint32_t first, std::uint32_t least,
                            Candidates out, std::size_t& count, Next&& next) {
  const Integers integers;
  const std::size_t lanes = hn::Lanes(integers);
  const auto below = hn::Set(integers, static_cast<std::int32_t>(least) - 1);
  const auto is_large = [&](hn::Vec<Floats> value) HWY_ATTR {
    return hn::Gt(hn::BitCast(integers, hn::Abs(value)), below);
  };
  std::size_t found = 0;
  std::size_t i = 0;
  for (; i + 4 * lanes <= run.size(); i += 4 * lanes) {
    const auto a = is_large(next(i));
    const auto b = is_large(next(i + lanes));
    const auto c = is_large(next(i + 2 * lanes));
    const auto d = is_large(next(i + 3 * lanes));
    if (hn::AllFalse(integers, hn::Or(hn::Or(a, b), hn::Or(c, d)))) continue;
    std::uint64_t left =
        bits_of(a) | bits_of(b) << lanes | bits_of(c) << (2 * lanes) | bits_of(d) << (3 * lanes);
    for (; left != 0; left &= left - 1) {
      const std::size_t at = i + static_cast<std::size_t>(std::countr_zero(left));
      out.indices[found] = first + static_cast<std::uint32_t>(at);
      out.values[found] = run[at];
      ++found;
    }
  }
  count = found;
  return i;
}

std::size_t collect(std::span<const float> run, std::uint32_t first, std::uint32_t least,
                    Candidates out) {
  std::size_t count = 0;
  const std::size_t done = scan(run, first, least, out, count, [&](std::size_t i) HWY_ATTR {
    return hn::LoadU(Floats(), &run[i]);
  });
  return count + reference::collect(run.subspan(done), first + static_cast<std::uint32_t>(done),
                                    least, {out.indices.subspan(count), out.values.subspan(count)});
}

std::size_t add_collect(std::span<float> run, std::span<const float> addend, std::uint32_t first,
                        std::uint32_t least, Candidates out) {
  std::size_t count = 0;
  const std::size_t done = scan(run, first, least, out, count, [&](std::size_t i) HWY_ATTR {
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
         "collect: the output must have room for the whole run", out.indices.size(),
         out.values.size(), run.size());
  return THINREDUCE_CALL(collect)(run, first, least, out);
}

std::size_t add_collect(std::span<float> run, std::span<const float> addend, std::uint32_t first,
                        std::uint32_t least, Candidates out) {
  ensure(run.size() == addend.size(), "add_collect: spans must have the same length", run.size(),
         addend.size());
  ensure(out.indices.size() >= run.size() && out.values.size() >= run.size(),
         "add_collect: the output must have room for the whole run", out.indices.size(),
         out.values.size(), run.size());
  return THINREDUCE_CALL(add_collect)(run, addend, first, least, out);
}

void count_digits(std::span<const float> values, const Digit& digit, DigitCounts& counts) {
  const std::uint32_t mask = (1U << digit.bits) - 1;
  for (const float value : values) {
    const std::uint32_t digits = magnitude(value) >> digit.shift;
    counts[digits & mask] += (digits >> digit.bits) == digit.decided;
  }
}

KthLargest kth_largest(std::span<const float> values, std::size_t k) {
  ensure(k >= 1 && k <= values.size(), "kth_largest: k must be from 1 to the number of values", k,
         values.size());
  return find_kth_largest(
      k, [&](const Digit& digit, DigitCounts& counts) { count_digits(values, digit, counts); });
}

// Has no branches that depend on whether an element stays, which is unpredictable; only the end of
// `out` is one.
std::size_t keep_largest(KthLargest last, Candidates in, Candidates out) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < in.values.size() && kept < out.values.size(); ++i) {
    const std::uint32_t bits = magnitude(in.values[i]);
    const bool tie = bits == last.magnitude && last.ties > 0;
    out.indices[kept] = in.indices[i];
    out.values[kept] = in.values[i];
    kept += static_cast<std::size_t>((bits > last.magnitude) | tie);
    last.ties -= static_cast<std::size_t>(tie);
  }
  return kept;
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
