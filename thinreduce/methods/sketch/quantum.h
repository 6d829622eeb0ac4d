// Floats of all ranks as whole multiples of one quantum: they take 2 bytes, and add exactly in any
// order. What a value has beside its multiple is left to the rank that owns it.
//
// The quantum is a power of two. So a multiple of it, a sum of multiples over all ranks and what
// rounding leaves of a value are floats without any error of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"

namespace thinreduce {

class SharedQuantum {
 public:
  // Sums have to stay within 16 bits, so that the more ranks there are, the fewer multiples has
  // each of them; with more ranks than this it would be fewer than 64.
  static constexpr int kMostRanks = 511;

  // The smallest quantum of which no rank's value is more than limit() multiples. `largest` is the
  // largest magnitude of all ranks' values, finite and not negative.
  SharedQuantum(float largest, int world);

  // The same on all ranks. Throws Error{bad_frame} when a value of any rank is not finite, and for
  // an answer that can't be.
  [[nodiscard]] static SharedQuantum agree(Exchange& exchange, std::span<const float> values);

  [[nodiscard]] float quantum() const { return quantum_; }
  // Of one rank.
  [[nodiscard]] int limit() const { return limit_; }

  // The nearest multiples; from the middle, away from zero.
  void round(std::span<const float> values, std::span<std::int16_t> multiples) const;
  // A sum that does not fit a float becomes infinite.
  void restore(std::span<const std::int16_t> multiples, std::span<float> values) const;

  // Throws Error{bad_frame}, naming `peer`, unless all can be sums over `summed` ranks.
  void check(std::span<const std::int16_t> sums, int summed, int peer) const;

 private:
  float quantum_ = 1;
  int limit_ = 0;
};

// All ranks' multiples, summed by a ring: `own` stays, `room` is as long, and `sums` become the
// sums of what the multiples stand for.
struct MultiplesSum {
  std::span<const std::int16_t> own;
  std::span<std::int16_t> room;
  std::span<float> sums;
};
void ring_sum_multiples(Exchange& exchange, const SharedQuantum& quantum, const MultiplesSum& sum);

}  // namespace thinreduce
