// The cost model of the planner: what a trial on a sample says about a whole bucket, and when the
// buckets of a step are done. docs/planner.md has the formulas in words.
#pragma once

#include <cstddef>
#include <span>

#include "thinreduce/transport/throttle.h"

namespace thinreduce {

// The cost of a candidate on a sample of a bucket: the largest figures of any rank.
struct TrialFigures {
  double seconds = 0;  // from the start to the mean
  double busy = 0;     // of them, encoding and decoding
  double bytes = 0;    // sent
  double error = 0;    // squared error of the mean relative to its energy; the same on all ranks
};

// The predicted cost of a candidate on the whole bucket if nothing else is in flight.
struct Prediction {
  double latency = 0;  // seconds that depend neither on the bytes nor on the processor
  double busy = 0;     // seconds of encoding and decoding
  double wire = 0;     // seconds that its bytes occupy the link
  double seconds = 0;  // from the start to the mean
  double bytes = 0;
};

// Part of the shorter one of computing and sending that the longer one does not hide, in a bucket
// of many pieces.
inline constexpr double kNotHidden = 0.25;

// Predicts the cost of a bucket `times` as large as the sample, the agreement before it included.
[[nodiscard]] Prediction predict(const TrialFigures& trial, double times, const Link& link);

// A bucket of a step.
struct TimedBucket {
  double ready = 0;  // seconds from the step's first bucket until it is submitted
  Prediction cost;
};

// Returns the seconds from the first bucket's submission until the last mean. The buckets, in the
// order of submission, share a link and a processor.
[[nodiscard]] double predict_finish(std::span<const TimedBucket> buckets);

}  // namespace thinreduce
