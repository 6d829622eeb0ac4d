// The plan of a session with the spec `auto`: which method reduces each bucket, and why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "thinreduce/transport/throttle.h"

namespace thinreduce {

// One method that a bucket may have. The seconds are predictions for the bucket alone.
struct PlanCandidate {
  std::string spec;
  bool tried = false;    // false: a finer setting of the same method was too coarse already
  bool allowed = false;  // the error is within the bound
  double error = 0;      // measured: squared error of the mean relative to its sum of squares
  double latency = 0;    // seconds that depend neither on the bytes nor on the processor
  double busy = 0;       // seconds of encoding and decoding
  double wire = 0;       // seconds that the bytes occupy the link
  double seconds = 0;    // from the start to the mean
  double bytes = 0;      // sent per rank
};

struct PlanBucket {
  std::uint32_t id = 0;
  std::uint64_t elements = 0;
  double ready = 0;            // seconds from the step's first bucket until this one is submitted
  std::string spec;            // the choice
  double sample_fraction = 1;  // part of the bucket that the candidates were tried on
  std::vector<PlanCandidate> candidates;  // empty until the first trials
};

struct Plan {
  bool active = false;  // the session's spec is `auto`
  Link link;            // as measured
  // Seconds from the first bucket's submission until the last mean of a step: with this plan, and
  // if nothing were compressed. 0 before the first trials.
  double predicted = 0;
  double uncompressed = 0;
  double measured = 0;        // the same as `predicted` in the last steps; 0 if there are none yet
  std::uint64_t trials = 0;   // how often the methods were tried
  std::uint64_t changes = 0;  // how often a bucket changed its method
  std::string reason;         // of the choice, in a sentence
  std::vector<PlanBucket> buckets;
};

}  // namespace thinreduce
