// The cost model of the planner: what a trial on a sample says about a whole bucket, and when the
// buckets of a step are done. docs/planner.md has the formulas in words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinreduce/transport/throttle.h"

namespace thinreduce {

// The cost of a candidate on a sample of a bucket: the largest figures of any rank.
struct TrialFigures {
  double seconds = 0;  // from the start to the mean
  double encode = 0;   // of them
  double decode = 0;   // of them
  double bytes = 0;    // sent
  double error = 0;    // squared error of the mean relative to its energy; the same on all ranks

  [[nodiscard]] double busy() const { return encode + decode; }
};

// The predicted cost of a candidate on the whole bucket if nothing else is in flight.
struct Prediction {
  double latency = 0;  // seconds that depend neither on the bytes nor on the processor
  double encode = 0;   // seconds
  double decode = 0;   // seconds
  double wire = 0;     // seconds that its bytes occupy the link
  double seconds = 0;  // from the start to the mean
  double bytes = 0;

  [[nodiscard]] double busy() const { return encode + decode; }
};

// Fraction of min(compute, send) that is not hidden by the other, in a bucket of many pieces.
inline constexpr double kNotHidden = 0.25;
// Messages of a method that wait for one another: each costs the latency of the link.
inline constexpr double kLatenciesPerReduce = 2;

// The conditions that decide the time of an exchange, beside its method.
struct Conditions {
  Link link;
  double slowdown = 1;  // time of encoding and decoding relative to the trials
};

// Predicts the cost of a bucket `times` as large as the sample, the agreement before it included.
[[nodiscard]] Prediction predict(const TrialFigures& trial, double times, const Link& link);
// The same under other conditions than those of the trial, whose link was `tried_on`.
[[nodiscard]] Prediction predict(const TrialFigures& trial, double times, const Link& tried_on,
                                 const Conditions& now);

// A bucket of a step.
struct TimedBucket {
  double ready = 0;  // seconds from the step's first bucket until it is submitted
  Prediction cost;
};

// Returns the seconds from the first bucket's submission until the last mean. The buckets, in the
// order of submission, share a link and a processor.
[[nodiscard]] double predict_finish(std::span<const TimedBucket> buckets);

// The part of the time that a machine computes below which local steps are recommended, and the
// part that they are to reach.
inline constexpr double kIdleMachine = 0.5;
inline constexpr double kBusyMachine = 0.9;
inline constexpr std::uint64_t kMaxLocalSteps = 1000;

// Returns how many local steps to do between exchanges (docs/local-steps.md): 1 if a step that
// computes for `compute` seconds and then waits for `exposed` keeps the machine busy enough.
// `whole` are the seconds of an exchange that nothing hides.
[[nodiscard]] std::uint64_t recommend_local_steps(double compute, double exposed, double whole);

}  // namespace thinreduce
