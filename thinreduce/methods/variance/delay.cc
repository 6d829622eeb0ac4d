#include "thinreduce/methods/variance/delay.h"

#include <cmath>
#include <cstring>

#include "thinreduce/ensure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinreduce/methods/variance/delay.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thinreduce/kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace thinreduce::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that the masks of four vectors fit into 64 bits.
using Lanes = hn::CappedTag<float, 16>;

// Returns lane i of the mask in bit i.
HWY_INLINE std::uint64_t lane_bits(hn::Mask<Lanes> mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(Lanes(), mask, bytes);
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

// `squares_at(i, g)` returns the addend of v for the gradients g at element i. The loop is bound by
// memory, so v decays in the same pass. Unambiguous elements are written one by one: most groups of
// four vectors have none, and compressed stores are slow with AVX2.
template <typename SquaresAt>
HWY_INLINE std::size_t scan_delayed(const DelayedRun& run, const DelayRule& rule, Candidates out,
                                    std::size_t& count, SquaresAt&& squares_at) {
  const Lanes d;
  const std::size_t lanes = hn::Lanes(d);
  const auto alpha = hn::Set(d, rule.alpha);
  const auto zeta = hn::Set(d, rule.zeta);
  const auto tau = hn::Set(d, rule.tau);
  const auto max = hn::Set(d, kMaxSquares);
  const auto step = [&](std::size_t i) HWY_ATTR {
    const auto gradient = hn::LoadU(d, &run.gradient[i]);
    const auto sum = hn::Add(hn::LoadU(d, &run.sums[i]), gradient);
    const auto grown = hn::Add(hn::LoadU(d, &run.squares[i]), squares_at(i, gradient));
    const auto squares = hn::IfThenElse(hn::Lt(max, grown), max, grown);
    const auto fires =
        hn::And(hn::Lt(hn::Mul(alpha, squares), hn::Mul(sum, sum)), hn::Lt(tau, hn::Abs(sum)));
    hn::StoreU(sum, d, &run.sums[i]);
    hn::StoreU(hn::IfThenElse(fires, squares, hn::Mul(squares, zeta)), d, &run.squares[i]);
    return fires;
  };
  std::size_t found = 0;
  std::size_t i = 0;
  for (; i + 4 * lanes <= run.gradient.size(); i += 4 * lanes) {
    const auto a = step(i);
    const auto b = step(i + lanes);
    const auto c = step(i + 2 * lanes);
    const auto e = step(i + 3 * lanes);
    if (hn::AllFalse(d, hn::Or(hn::Or(a, b), hn::Or(c, e)))) continue;
    std::uint64_t left = lane_bits(a) | lane_bits(b) << lanes | lane_bits(c) << (2 * lanes) |
                         lane_bits(e) << (3 * lanes);
    for (; left != 0; left &= left - 1) {
      const std::size_t at = i + static_cast<std::size_t>(std::countr_zero(left));
      out.indices[found] = run.first + static_cast<std::uint32_t>(at);
      out.values[found] = run.sums[at];
      ++found;
    }
  }
  count = found;
  return i;
}

std::size_t delay(const DelayedRun& run, const DelayRule& rule, Candidates out) {
  const Lanes d;
  std::size_t count = 0;
  std::size_t done = 0;
  if (run.second_moment.empty()) {
    const auto weight = hn::Set(d, rule.square_weight);
    done = scan_delayed(run, rule, out, count,
                        [&](std::size_t /*i*/, hn::Vec<Lanes> gradient)
                            HWY_ATTR { return hn::Mul(hn::Mul(gradient, gradient), weight); });
  } else {
    done = scan_delayed(run, rule, out, count,
                        [&](std::size_t i, hn::Vec<Lanes> /*gradient*/)
                            HWY_ATTR { return hn::LoadU(d, &run.second_moment[i]); });
  }
  const DelayedRun rest{.gradient = run.gradient.subspan(done),
                        .second_moment = run.second_moment.empty()
                                             ? run.second_moment
                                             : run.second_moment.subspan(done),
                        .sums = run.sums.subspan(done),
                        .squares = run.squares.subspan(done),
                        .first = run.first + static_cast<std::uint32_t>(done)};
  return count +
         reference::delay(rest, rule, {out.indices.subspan(count), out.values.subspan(count)});
}

}  // namespace thinreduce::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinreduce::kernels {
namespace reference {

std::size_t delay(const DelayedRun& run, const DelayRule& rule, Candidates out) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < run.gradient.size(); ++i) {
    const float gradient = run.gradient[i];
    const float sum = run.sums[i] + gradient;
    const float grown =
        run.squares[i] + (run.second_moment.empty() ? gradient * gradient * rule.square_weight
                                                    : run.second_moment[i]);
    const float squares = kMaxSquares < grown ? kMaxSquares : grown;
    const bool fires = rule.alpha * squares < sum * sum && rule.tau < std::abs(sum);
    run.sums[i] = sum;
    run.squares[i] = fires ? squares : squares * rule.zeta;
    if (!fires) continue;
    out.indices[count] = run.first + static_cast<std::uint32_t>(i);
    out.values[count] = sum;
    ++count;
  }
  return count;
}

}  // namespace reference

THINREDUCE_KERNEL(delay);

std::size_t delay(const DelayedRun& run, const DelayRule& rule, Candidates out) {
  const std::size_t size = run.gradient.size();
  ensure(run.sums.size() == size && run.squares.size() == size,
         "delay: spans must have the same length", run.sums.size(), run.squares.size(), size);
  ensure(run.second_moment.empty() || run.second_moment.size() == size,
         "delay: each element must have a second moment", run.second_moment.size(), size);
  ensure(out.indices.size() >= size && out.values.size() >= size,
         "delay: the output must have room for the whole run", out.indices.size(),
         out.values.size(), size);
  return THINREDUCE_CALL(delay)(run, rule, out);
}

}  // namespace thinreduce::kernels
#endif  // HWY_ONCE
