// Sums and maxima of float32 over all ranks, in place.
//
// choose.h says how they travel: in a ring (ring.h), by owners (owner_sum.h), or directly: every
// rank sends its floats to every other, 1 latency and (N-1)*(payload + 8) bytes sent. All give the
// same bits, because all add in the ring's order.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "thinreduce/collective/checked.h"
#include "thinreduce/collective/choose.h"

namespace thinreduce {

// Replaces `values` by (sum over all ranks) * scale.
void sum_floats(Exchange& exchange, std::span<float> values, float scale,
                const SumOptions& options = {});
// The same for the bucket of the exchange: keeps its gradient, if that must be kept.
void sum_bucket(Exchange& exchange, std::span<float> values, float scale);

// Where a rank found NaN or Inf during a sum.
struct Nonfinite {
  std::size_t own = 0;     // index of the first in its own values; their number if there is none
  bool in_result = false;  // the same on all ranks, because all have the same result
};

// Sums as sum_bucket() does and looks for NaN and Inf while the values are in the cache. If a value
// of any rank is not finite, the result has NaN or Inf; finite values may overflow to it.
[[nodiscard]] Nonfinite sum_floats_checked(Exchange& exchange, std::span<float> values, float scale,
                                           const SumOptions& options = {});

// Replaces `values` by their elementwise maximum over all ranks.
void max_floats(Exchange& exchange, std::span<float> values, const SumOptions& options = {});

// Floats in flight to every other rank. Other messages may travel between the constructor and
// finish(), if all ranks send and receive them in the same order.
class DirectExchange {
 public:
  using Fold = void (*)(std::span<float> into, std::span<const float> in);

  // Sends `values`, which must stay untouched until finish(), and counts them as payload.
  DirectExchange(Exchange& exchange, std::span<float> values);
  // Waits for the floats of all ranks and folds them into `values`, in the order of a ring.
  void finish(Exchange& exchange, Fold fold);

 private:
  std::span<float> values_;
  std::vector<float> all_;  // by rank
  std::vector<CheckedReceive> receives_;
  std::vector<CheckedSend> sends_;
};

// A sum beside another exchange: a direct one only starts in the constructor, any other is complete
// when that returns.
class EarlySum {
 public:
  EarlySum(Exchange& exchange, std::span<float> values, float scale);
  // Completes the sum.
  void finish(Exchange& exchange);

 private:
  std::span<float> values_;
  float scale_;
  std::optional<DirectExchange> direct_;
};

// Throws Error{bad_frame}, which names the magnitudes `what`, when a maximum over all ranks is not
// finite or below this rank's own.
void require_maxima(const Exchange& exchange, std::span<const float> maxima,
                    std::span<const float> own, std::string_view what);

// Replaces `magnitudes` by their elementwise maximum over all ranks; `own` becomes a copy of this
// rank's. Throws as require_maxima() does.
void agree_on_maxima(Exchange& exchange, std::span<float> magnitudes, std::vector<float>& own,
                     std::string_view what);

// Throws Error{bad_frame}, which calls an element `what` and counts from `first`, when a sum over
// the ranks is NaN or Inf. No method may go on with such a sum: it would end in the residual or the
// mean.
void require_finite_sum(const Exchange& exchange, std::span<const float> sums,
                        std::string_view what, std::size_t first = 0);

}  // namespace thinreduce
