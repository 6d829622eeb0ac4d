#include "thinreduce/plan/cost.h"

#include <algorithm>
#include <cmath>

namespace thinreduce {
namespace {

double wire_seconds(double bytes, const Link& link) {
  return link.bytes_per_second > 0 ? bytes / link.bytes_per_second : 0;
}

}  // namespace

Prediction predict(const TrialFigures& trial, double times, const Link& link) {
  return predict(trial, times, link, {.link = link});
}

Prediction predict(const TrialFigures& trial, double times, const Link& tried_on,
                   const Conditions& now) {
  const double rest = trial.seconds - trial.busy() - wire_seconds(trial.bytes, tried_on);
  const double longer = (now.link.latency - tried_on.latency).count();
  // Latency that the trial showed; where stages overlapped, there is less than none.
  const double latency = std::max(0.0, std::max(0.0, rest) + kLatenciesPerReduce * longer);
  const double overlap = std::min(0.0, rest);
  const double sample_busy = trial.busy() * now.slowdown;
  const double sample_wire = wire_seconds(trial.bytes, now.link);
  Prediction result;
  result.bytes = trial.bytes * times;
  result.encode = trial.encode * now.slowdown * times;
  result.decode = trial.decode * now.slowdown * times;
  result.wire = wire_seconds(result.bytes, now.link);
  result.latency = now.link.latency.count() + latency;
  // A sample is one piece, or two on a slow link: its stages follow one another.
  const double sample =
      std::max({latency + sample_busy + sample_wire + overlap, sample_busy, sample_wire});
  // The other pieces of the bucket follow in a pipeline.
  const double busy = result.busy() - sample_busy;
  const double wire = result.wire - sample_wire;
  result.seconds =
      now.link.latency.count() + sample + std::max(busy, wire) + kNotHidden * std::min(busy, wire);
  return result;
}

double predict_finish(std::span<const TimedBucket> buckets) {
  double link_free = 0;
  double processor_free = 0;
  double finish = 0;
  for (const TimedBucket& bucket : buckets) {
    const Prediction& cost = bucket.cost;
    link_free = std::max(link_free, bucket.ready) + cost.wire;
    processor_free = std::max(processor_free, bucket.ready) + cost.busy();
    finish = std::max({finish, bucket.ready + cost.seconds, link_free + cost.latency,
                       processor_free + cost.latency});
  }
  return finish;
}

std::uint64_t recommend_local_steps(double compute, double exposed, double whole) {
  if (!(compute > 0) || compute > kIdleMachine * (compute + exposed)) return 1;
  // The machine is busy for H compute of H compute + whole.
  const double steps = kBusyMachine / (1 - kBusyMachine) * whole / compute;
  return static_cast<std::uint64_t>(
      std::clamp(std::ceil(steps - 1e-9), 1.0, static_cast<double>(kMaxLocalSteps)));
}

}  // namespace thinreduce
