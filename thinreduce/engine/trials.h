// Trials: the ranks reduce samples of their buckets with candidates of `auto`, to measure the time
// and the error of each. All figures are agreed: the same on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/engine/registered_bucket.h"
#include "thinreduce/engine/trial.h"
#include "thinreduce/plan/planner.h"

namespace thinreduce {

// Returns how many elements a sample of a bucket should have: as many as are quickly sent on the
// link and a small part of the bucket, but enough that messages between all ranks are long
// beside their headers.
[[nodiscard]] std::size_t sample_size(const Link& link, int world, std::size_t elements);

// Fills `sample` with about `wanted` of the elements that `layout` compresses: a run of each
// tensor, all of them the same fraction of their tensor.
void take_sample(const BucketLayout& layout, std::span<const float> values, std::size_t wanted,
                 std::vector<float>& sample);

struct TrialSetup {
  const AutoOptions& options;
  std::uint64_t seed = 0;
  MakeExchange make_exchange;
  // Whether candidates are tried that are seldom chosen, whatever their trials cost.
  bool try_others = false;
};

// The sample of one bucket.
struct Sample {
  std::vector<float> values;  // of this rank
  std::vector<float> mean;    // exact, of all ranks; empty if it is not known
  // Seconds that a rank computed in the bucket's last step, with fp32; 0: not known.
  double busy = 0;
};

// Tries the candidates on this rank's sample of a bucket. All ranks must call it for the same
// buckets in the same order. Skips candidates that can't be faster than the best so far by as much
// as their trials cost, and candidates whose error must be too large because that of finer ones is.
[[nodiscard]] Planner::Trials try_candidates(const TrialSetup& setup,
                                             const RegisteredBucket& bucket, const Sample& sample);

}  // namespace thinreduce
