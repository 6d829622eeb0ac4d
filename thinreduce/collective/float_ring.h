// Rings of float32, in place: sums and maxima.
//
// Latencies and bytes are those of ring.h. At most RingOptions::direct_bytes go directly to every
// other rank instead and are added in rank order: 1 latency, (N-1)*(payload + 8) bytes sent.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "thinreduce/collective/ring.h"

namespace thinreduce {

// Replaces `values` by (sum over all ranks) * scale.
void ring_sum(Exchange& exchange, std::span<float> values, float scale,
              const RingOptions& options = {});

// The index of the first NaN or Inf that a rank saw during a sum; the number of values if it saw
// none.
struct Nonfinite {
  std::size_t own = 0;   // in its own values, except the chunk that it sent first
  std::size_t left = 0;  // in the chunk that its left neighbour sent first
};

// Sums as ring_sum() does and looks for NaN and Inf while the values are in the cache. The findings
// of all ranks together cover all values of all ranks; if any rank saw one, the sum is invalid on
// all ranks.
[[nodiscard]] Nonfinite ring_sum_checked(Exchange& exchange, std::span<float> values, float scale,
                                         const RingOptions& options = {});

// Replaces `values` by their elementwise maximum over all ranks.
void ring_max(Exchange& exchange, std::span<float> values, const RingOptions& options = {});

// Replaces `magnitudes` by their elementwise maximum over all ranks; `own` becomes a copy of this
// rank's. Throws Error{bad_frame}, which names the magnitudes `what`, when a maximum is not finite
// or below this rank's own.
void agree_on_maxima(Exchange& exchange, std::span<float> magnitudes, std::vector<float>& own,
                     std::string_view what);

// Throws Error{bad_frame}, which calls an element `what` and counts from `first`, when a sum over
// the ranks is NaN or Inf. No method may go on with such a sum: it would end in the residual or the
// mean.
void require_finite_sum(const Exchange& exchange, std::span<const float> sums,
                        std::string_view what, std::size_t first = 0);

}  // namespace thinreduce
