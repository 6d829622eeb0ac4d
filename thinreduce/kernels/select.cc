#include "thinreduce/kernels/select.h"

#include <algorithm>

#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/kernels/select.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/compress-inl.h"
#include "thinreduce/kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

std::size_t collect(std::span<const float> run, std::uint32_t first, std::uint32_t min,
                    Candidates out) {
  return reference::collect(run, first, min, out);
}
std::size_t add_collect(std::span<float> run, std::span<const float> addend, std::uint32_t first,
                        std::uint32_t min, Candidates out) {
  return reference::add_collect(run, addend, first, min, out);
}
void count_digits(std::span<const float> values, const Digit& digit, DigitCounts& counts) {
  reference::count_digits(values, digit, counts);
}
std::size_t keep_largest(KthLargest last, Candidates in, Candidates out) {
  return reference::keep_largest(last, in, out);
}

#else

using Floats = hn::ScalableTag<float>;
using Integers = hn::RebindToSigned<Floats>;
using Indices = hn::RebindToUnsigned<Floats>;

HWY_INLINE hn::Vec<Integers> magnitudes(hn::Vec<Floats> values) {
  return hn::BitCast(Integers(), hn::Abs(values));
}

// The scan that both kernels share; returns the number of elements scanned. `next(i)` returns the
// vector at element i and stores it to run[i]. Four vectors are tested together, because at low
// densities most quadruples have no candidate. The others write whole vectors, with their
// candidates in front, into room that later candidates overwrite: branches that depend on single
// elements would be mispredicted.
template <typename Next>
HWY_INLINE std::size_t scan(std::span<const float> run, std::uint32_t first, std::uint32_t min,
                            Candidates out, std::size_t& count, Next&& next) {
  const Floats floats;
  const Integers integers;
  const Indices indices;
  const std::size_t lanes = hn::Lanes(floats);
  const auto below = hn::Set(integers, static_cast<std::int32_t>(min) - 1);
  const auto lane = hn::Iota(indices, 0);  // outside of the loop, because it passes through memory
  std::size_t found = 0;
  std::size_t i = 0;
  for (; i + 4 * lanes <= run.size(); i += 4 * lanes) {
    const auto a = next(i);
    const auto b = next(i + lanes);
    const auto c = next(i + 2 * lanes);
    const auto d = next(i + 3 * lanes);
    const auto large_a = hn::Gt(magnitudes(a), below);
    const auto large_b = hn::Gt(magnitudes(b), below);
    const auto large_c = hn::Gt(magnitudes(c), below);
    const auto large_d = hn::Gt(magnitudes(d), below);
    if (hn::AllFalse(integers, hn::Or(hn::Or(large_a, large_b), hn::Or(large_c, large_d)))) {
      continue;
    }
    const auto write = [&](hn::Vec<Floats> values, hn::Mask<Integers> large,
                           std::size_t at) HWY_ATTR {
      const auto candidates = front_lanes(integers, large);
      const auto index = hn::Add(lane, hn::Set(indices, first + static_cast<std::uint32_t>(at)));
      hn::StoreU(to_front(integers, candidates, indices, index), indices, &out.indices[found]);
      hn::StoreU(to_front(integers, candidates, floats, values), floats, &out.values[found]);
      found += count_front(integers, candidates);
    };
    write(a, large_a, i);
    write(b, large_b, i + lanes);
    write(c, large_c, i + 2 * lanes);
    write(d, large_d, i + 3 * lanes);
  }
  count = found;
  return i;
}

std::size_t collect(std::span<const float> run, std::uint32_t first, std::uint32_t min,
                    Candidates out) {
  std::size_t count = 0;
  const std::size_t done = scan(run, first, min, out, count, [&](std::size_t i) HWY_ATTR {
    return hn::LoadU(Floats(), &run[i]);
  });
  return count + reference::collect(run.subspan(done), first + static_cast<std::uint32_t>(done),
                                    min, {out.indices.subspan(count), out.values.subspan(count)});
}

std::size_t add_collect(std::span<float> run, std::span<const float> addend, std::uint32_t first,
                        std::uint32_t min, Candidates out) {
  std::size_t count = 0;
  const std::size_t done = scan(run, first, min, out, count, [&](std::size_t i) HWY_ATTR {
    const Floats floats;
    const auto sum = hn::Add(hn::LoadU(floats, &run[i]), hn::LoadU(floats, &addend[i]));
    hn::StoreU(sum, floats, &run[i]);
    return sum;
  });
  return count + reference::add_collect(run.subspan(done), addend.subspan(done),
                                        first + static_cast<std::uint32_t>(done), min,
                                        {out.indices.subspan(count), out.values.subspan(count)});
}

// Gathers the values whose higher bits match, which are few unless there are no higher bits.
void count_digits(std::span<const float> values, const Digit& digit, DigitCounts& counts) {
  const int above = static_cast<int>(digit.shift + digit.bits);
  if (above >= 31) return reference::count_digits(values, digit, counts);
  const Floats floats;
  const Integers integers;
  const std::size_t lanes = hn::Lanes(floats);
  const auto decided = hn::Set(integers, static_cast<std::int32_t>(digit.decided));
  constexpr std::size_t kRun = 1024;
  std::array<float, kRun + hn::MaxLanes(Floats())> matching;
  for (std::size_t first = 0; first < values.size(); first += kRun) {
    const auto run = values.subspan(first, std::min(kRun, values.size() - first));
    std::size_t found = 0;
    std::size_t i = 0;
    for (; i + lanes <= run.size(); i += lanes) {
      const auto value = hn::LoadU(floats, &run[i]);
      const auto higher = hn::ShiftRightSame(magnitudes(value), above);
      const auto matches = front_lanes(integers, hn::Eq(higher, decided));
      hn::StoreU(to_front(integers, matches, floats, value), floats, &matching[found]);
      found += count_front(integers, matches);
    }
    reference::count_digits(std::span(matching).first(found), digit, counts);
    reference::count_digits(run.subspan(i), digit, counts);
  }
}

// Works on whole vectors while there is no tie that has to go and `out` has room for them.
std::size_t keep_largest(KthLargest last, Candidates in, Candidates out) {
  const Floats floats;
  const Integers integers;
  const Indices indices;
  const std::size_t lanes = hn::Lanes(floats);
  const auto threshold = hn::Set(integers, static_cast<std::int32_t>(last.magnitude));
  const std::size_t size = std::min(in.values.size(), in.indices.size());
  const std::size_t room = std::min(out.values.size(), out.indices.size());
  std::size_t kept = 0;
  std::size_t i = 0;
  for (; i + lanes <= size && kept + lanes <= room; i += lanes) {
    const auto value = hn::LoadU(floats, &in.values[i]);
    const auto index = hn::LoadU(indices, &in.indices[i]);
    const auto larger = hn::Gt(magnitudes(value), threshold);
    auto stays = larger;
    const auto equal = hn::Eq(magnitudes(value), threshold);
    if (HWY_UNLIKELY(!hn::AllFalse(integers, equal))) {
      const std::size_t ties = hn::CountTrue(integers, equal);
      if (last.ties > 0 && last.ties < ties) break;
      if (last.ties > 0) {
        stays = hn::Or(larger, equal);
        last.ties -= ties;
      }
    }
    const auto stay = front_lanes(integers, stays);
    hn::StoreU(to_front(integers, stay, floats, value), floats, &out.values[kept]);
    hn::StoreU(to_front(integers, stay, indices, index), indices, &out.indices[kept]);
    kept += count_front(integers, stay);
  }
  return kept + reference::keep_largest(last, {in.indices.subspan(i), in.values.subspan(i)},
                                        {out.indices.subspan(kept), out.values.subspan(kept)});
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

std::size_t collect(std::span<const float> run, std::uint32_t first, std::uint32_t min,
                    Candidates out) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < run.size(); ++i) {
    if (magnitude(run[i]) < min) continue;
    out.indices[count] = first + static_cast<std::uint32_t>(i);
    out.values[count] = run[i];
    ++count;
  }
  return count;
}

std::size_t add_collect(std::span<float> run, std::span<const float> addend, std::uint32_t first,
                        std::uint32_t min, Candidates out) {
  reference::add(run, addend);
  return reference::collect(run, first, min, out);
}

void count_digits(std::span<const float> values, const Digit& digit, DigitCounts& counts) {
  const std::uint32_t mask = (1U << digit.bits) - 1;
  for (const float value : values) {
    const std::uint32_t digits = magnitude(value) >> digit.shift;
    counts[digits & mask] += (digits >> digit.bits) == digit.decided;
  }
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

}  // namespace reference

THINREDUCE_KERNEL(collect);
THINREDUCE_KERNEL(add_collect);
THINREDUCE_KERNEL(count_digits);
THINREDUCE_KERNEL(keep_largest);

std::size_t collect(std::span<const float> run, std::uint32_t first, std::uint32_t min,
                    Candidates out) {
  ensure(out.indices.size() >= run.size() && out.values.size() >= run.size(),
         "collect: the output must have room for the whole run", out.indices.size(),
         out.values.size(), run.size());
  return THINREDUCE_CALL(collect)(run, first, min, out);
}

std::size_t add_collect(std::span<float> run, std::span<const float> addend, std::uint32_t first,
                        std::uint32_t min, Candidates out) {
  ensure(run.size() == addend.size(), "add_collect: spans must have the same length", run.size(),
         addend.size());
  ensure(out.indices.size() >= run.size() && out.values.size() >= run.size(),
         "add_collect: the output must have room for the whole run", out.indices.size(),
         out.values.size(), run.size());
  return THINREDUCE_CALL(add_collect)(run, addend, first, min, out);
}

void count_digits(std::span<const float> values, const Digit& digit, DigitCounts& counts) {
  ensure(digit.bits <= 11 && digit.shift + digit.bits <= 31,
         "count_digits: a digit must have at most 11 of the 31 bits", digit.bits, digit.shift);
  THINREDUCE_CALL(count_digits)(values, digit, counts);
}

std::size_t keep_largest(KthLargest last, Candidates in, Candidates out) {
  ensure(in.indices.size() == in.values.size() && out.indices.size() == out.values.size(),
         "keep_largest: indices and values must have the same number", in.indices.size(),
         in.values.size(), out.indices.size(), out.values.size());
  return THINREDUCE_CALL(keep_largest)(last, in, out);
}

KthLargest kth_largest(std::span<const float> values, std::size_t k) {
  ensure(k >= 1 && k <= values.size(), "kth_largest: k must be from 1 to the number of values", k,
         values.size());
  return find_kth_largest(
      k, [&](const Digit& digit, DigitCounts& counts) { count_digits(values, digit, counts); });
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
