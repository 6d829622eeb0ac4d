#include "thinreduce/plan/cost.h"

#include <algorithm>

namespace thinreduce {

Prediction predict(const TrialFigures& trial, double times, const Link& link) {
  const auto wire_seconds = [&](double bytes) {
    return link.bytes_per_second > 0 ? bytes / link.bytes_per_second : 0;
  };
  const double sample_wire = wire_seconds(trial.bytes);
  Prediction result;
  result.bytes = trial.bytes * times;
  result.busy = trial.busy * times;
  result.wire = wire_seconds(result.bytes);
  // A sample is one piece: its stages follow one another.
  result.latency = link.latency.count() + std::max(0.0, trial.seconds - trial.busy - sample_wire);
  // The other pieces of the bucket follow in a pipeline.
  const double busy = result.busy - trial.busy;
  const double wire = result.wire - sample_wire;
  result.seconds = link.latency.count() + trial.seconds + std::max(busy, wire) +
                   kNotHidden * std::min(busy, wire);
  return result;
}

double predict_finish(std::span<const TimedBucket> buckets) {
  double link_free = 0;
  double processor_free = 0;
  double finish = 0;
  for (const TimedBucket& bucket : buckets) {
    const Prediction& cost = bucket.cost;
    link_free = std::max(link_free, bucket.ready) + cost.wire;
    processor_free = std::max(processor_free, bucket.ready) + cost.busy;
    finish = std::max({finish, bucket.ready + cost.seconds, link_free + cost.latency,
                       processor_free + cost.latency});
  }
  return finish;
}

}  // namespace thinreduce
