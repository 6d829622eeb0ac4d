// Rounds the values of all ranks to multiples of one shared quantum. Multiples take 2 bytes and add
// exactly in any order; each rank keeps the rounding errors of its own values.
//
// The quantum is a power of two, so multiples, their sums over all ranks and the rounding errors
// are exact in float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "thinreduce/collective/choose.h"
#include "thinreduce/collective/float_sum.h"

namespace thinreduce {

class SharedQuantum {
 public:
  // Sums must fit into 16 bits, so each rank's multiples are limited to 32767 / ranks. With more
  // ranks than this the limit would be below 64.
  static constexpr int kMaxRanks = 511;

  // Chooses the smallest quantum for which no value exceeds limit() multiples. `largest` is the
  // largest magnitude over all ranks; it must be finite and not negative.
  SharedQuantum(float largest, int world);

  [[nodiscard]] float quantum() const { return quantum_; }
  // Returns the maximum magnitude of one rank's multiples.
  [[nodiscard]] int limit() const { return limit_; }

  // Rounds to the nearest multiples, ties away from zero.
  void round(std::span<const float> values, std::span<std::int16_t> multiples) const;
  // Converts multiples, or sums of them, to values; overflow gives infinity.
  void restore(std::span<const std::int16_t> multiples, std::span<float> values) const;

  // Throws Error{bad_frame} that names `peer` unless all can be sums over `summed` ranks.
  void check(std::span<const std::int16_t> sums, int summed, int peer) const;

 private:
  float quantum_ = 1;
  int limit_ = 0;
};

// Returns the largest magnitude; infinity if a value is not finite, which makes all ranks refuse
// it.
[[nodiscard]] float largest_finite(std::span<const float> values);

// The agreement of all ranks on a quantum for their values. Other messages may travel while its own
// do: it needs one latency and waits only in conclude().
class QuantumAgreement {
 public:
  // `largest` is the largest_finite() of this rank's values.
  QuantumAgreement(Exchange& exchange, float largest);
  QuantumAgreement(const QuantumAgreement&) = delete;
  QuantumAgreement& operator=(const QuantumAgreement&) = delete;
  // Throws Error{bad_frame} on all ranks if a value of any rank is not finite.
  [[nodiscard]] SharedQuantum conclude(Exchange& exchange);

 private:
  float own_;
  float largest_;
  DirectExchange sent_;
};

// The spans of sum_multiples(), all of the same length.
struct MultiplesSum {
  std::span<const std::int16_t> own;  // this rank's multiples
  std::span<std::int16_t> room;       // scratch
  std::span<float> sums;              // result: the summed values
};
// Returns the codec of such a sum; `quantum` must outlive it.
[[nodiscard]] std::unique_ptr<SumCodec> make_multiples(const Exchange& exchange,
                                                       const SharedQuantum& quantum,
                                                       const MultiplesSum& sum);
// Sums all ranks' multiples.
void sum_multiples(Exchange& exchange, const SharedQuantum& quantum, const MultiplesSum& sum,
                   const SumOptions& options = {});

}  // namespace thinreduce
