// The plan of a session with the spec `auto`: which method reduces each bucket, and why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "thinreduce/transport/throttle.h"

namespace thinreduce {

// One method that a bucket may have. The seconds are predictions for the bucket alone, unless they
// say otherwise.
struct PlanCandidate {
  std::string spec;
  bool tried = false;    // false: it was clear without a trial that it would not be chosen
  bool allowed = false;  // the error is within the bound
  double error = 0;      // measured: squared error of the mean relative to its sum of squares
  double latency = 0;    // seconds that depend neither on the bytes nor on the processor
  double encode = 0;     // seconds
  double decode = 0;     // seconds
  double wire = 0;       // seconds that the bytes occupy the link
  double seconds = 0;    // from the start to the mean
  double exposed = 0;    // seconds from the step's last submitted bucket to its last mean, if this
                         // bucket had the candidate and the others had what was chosen for them
  double bytes = 0;      // sent per rank
};

struct PlanBucket {
  std::uint32_t id = 0;
  std::uint64_t elements = 0;
  double ready = 0;            // seconds from the step's first bucket until this one is submitted
  std::string spec;            // the choice
  std::string reason;          // of the choice, in a sentence
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
  double exposed = 0;          // of `predicted`, after the last bucket was submitted
  double measured = 0;         // the same as `predicted` in the last steps; 0 if there are none yet
  double compute = 0;          // seconds per step without exposed ones; 0: not known
  double planning = 0;         // seconds that this rank has spent on probes, trials and decisions
  double elapsed = 0;          // seconds since the first step of the session, for comparison
  std::uint64_t trials = 0;    // how often the methods were tried
  std::uint64_t changes = 0;   // how often a bucket changed its method
  std::uint64_t followed = 0;  // how often a change of the link was seen in the times of steps
  std::uint64_t local_steps = 1;  // recommended between exchanges; 1: exchange in every step
  std::string reason;             // of the choice, in a sentence
  std::string advice{};           // why local steps are recommended; "": they are not
  std::vector<PlanBucket> buckets;

  // Returns the reason, and the advice if there is any.
  [[nodiscard]] std::string sentence() const {
    return advice.empty() ? reason : reason + "; " + advice;
  }
};

}  // namespace thinreduce
