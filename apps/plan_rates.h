// The predicted times of a plan's candidates on links of other rates; docs/planner.md has the
// formula.
#pragma once

#include <algorithm>
#include <array>

#include "thinreduce/plan/cost.h"
#include "thinreduce/plan/plan.h"

namespace thinreduce::apps {

// Rates for which the best method is shown, in bits per second.
inline constexpr std::array kRates = {1e7, 3e7, 1e8, 3e8, 1e9, 2.5e9, 1e10, 2.5e10};

// Returns the predicted seconds of one bucket alone, with the latency of the plan's link.
inline double seconds_at(const PlanBucket& bucket, const PlanCandidate& candidate,
                         double bytes_per_second) {
  const double wire = candidate.bytes / bytes_per_second;
  const double busy = candidate.encode + candidate.decode;
  const double first = bucket.sample_fraction * (wire + busy);
  const double rest = std::max(wire, busy) + kNotHidden * std::min(wire, busy);
  return candidate.latency + first + (1 - bucket.sample_fraction) * rest;
}

// Returns the fastest candidate within the error bound.
inline const PlanCandidate& best_at(const PlanBucket& bucket, double bytes_per_second) {
  const PlanCandidate* best = &bucket.candidates[0];
  for (const PlanCandidate& candidate : bucket.candidates) {
    if (!candidate.allowed) continue;
    if (seconds_at(bucket, candidate, bytes_per_second) <
        seconds_at(bucket, *best, bytes_per_second)) {
      best = &candidate;
    }
  }
  return *best;
}

// Returns the bucket with the most elements that may be compressed; null if there is none.
inline const PlanBucket* largest_bucket(const Plan& plan) {
  const PlanBucket* largest = nullptr;
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.candidates.empty()) continue;
    if (largest == nullptr || bucket.elements > largest->elements) largest = &bucket;
  }
  return largest;
}

}  // namespace thinreduce::apps
