// The plan as people see it, with its reasons.
#include <fmt/format.h>

#include <algorithm>

#include "thinreduce/plan/planner.h"
#include "thinreduce/plan/recommend.h"
#include "thinreduce/plan/steps_in_common.h"

namespace thinreduce {
namespace {

std::string ms(double seconds) {
  return fmt::format("{:.3g} ms", 1000 * seconds);
}

const PlanCandidate* find(const PlanBucket& bucket, const std::string& spec) {
  const auto found = std::ranges::find(bucket.candidates, spec, &PlanCandidate::spec);
  return found == bucket.candidates.end() ? nullptr : &*found;
}

}  // namespace

std::string Planner::explain(const Plan& plan) const {
  if (compresses()) {
    return fmt::format("from the first bucket of a step to its last mean it takes {}, with fp32 {}",
                       ms(plan.predicted), ms(plan.uncompressed));
  }
  const bool tried =
      std::ranges::any_of(buckets_, [](const auto& entry) { return was_tried(entry.second); });
  if (!tried) {
    return fmt::format(
        "nothing is compressed and nothing was tried: a step's exchange takes {}, and so little of "
        "it "
        "is transfer time that no method could gain",
        ms(plan.uncompressed));
  }
  return fmt::format(
      "nothing is compressed: no method with an error of at most {} ends a step earlier than fp32, "
      "which takes {} from the first bucket of a step to its last mean",
      options_.max_error, ms(plan.uncompressed));
}

std::string Planner::explain(const Known& bucket, const PlanBucket& shown) const {
  if (bucket.elements == 0) return "it has no tensor that may be compressed";
  if (shown.candidates.empty()) return "it was not tried yet";
  const PlanCandidate& fp32 = shown.candidates[0];
  if (bucket.choice == 0) {
    if (!was_tried(bucket)) {
      return fmt::format("its bytes take {} of a step of {}, too little for trials", ms(fp32.wire),
                         ms(finish_with(all_fp32())));
    }
    const bool alone = std::none_of(shown.candidates.begin() + 1, shown.candidates.end(),
                                    [&](const PlanCandidate& one) { return one.allowed; });
    if (alone) {
      return fmt::format("no other method that was tried has an error of at most {}",
                         options_.max_error);
    }
    if (fp32.exposed <= (1 + kWorthwhile) * (finish_with(fastest()) - last_ready())) {
      return "its exchange is hidden behind the backward pass and other buckets";
    }
    if (opened_ < hold_until_) return "the methods that were chosen before took longer";
    return fmt::format("no method with an error of at most {} ends the step earlier",
                       options_.max_error);
  }
  const PlanCandidate* chosen = find(shown, shown.spec);
  if (chosen == nullptr || !chosen->tried) return "it was loaded with the state";
  return fmt::format(
      "the step waits {} for its last mean, with fp32 in this bucket {}; it sends {:.1f} times "
      "fewer bytes with an error of {:.2g}",
      ms(chosen->exposed), ms(fp32.exposed), chosen->bytes > 0 ? fp32.bytes / chosen->bytes : 1,
      chosen->error);
}

PlanBucket Planner::show(std::uint32_t id, const Known& bucket) const {
  PlanBucket shown;
  shown.id = id;
  shown.elements = bucket.elements;
  shown.ready = bucket.ready;
  shown.sample_fraction = 1 / bucket.trials.times;
  shown.spec = options_.candidates[bucket.choice].spec.short_text();
  Choices choices = current();
  for (std::size_t i = 0; i < bucket.predictions.size(); ++i) {
    const Prediction& cost = bucket.predictions[i];
    choices[id] = i;
    shown.candidates.push_back({.spec = options_.candidates[i].spec.short_text(),
                                .tried = bucket.trials.tried[i],
                                .allowed = is_allowed(bucket, i),
                                .error = bucket.trials.figures[i].error,
                                .latency = cost.latency,
                                .encode = cost.encode,
                                .decode = cost.decode,
                                .wire = cost.wire,
                                .seconds = cost.seconds,
                                .exposed = std::max(0.0, finish_with(choices) - last_ready()),
                                .bytes = cost.bytes});
  }
  shown.reason = explain(bucket, shown);
  return shown;
}

Plan Planner::plan() const {
  const std::lock_guard lock(mutex_);
  Plan plan;
  plan.active = true;
  plan.link = now_.link;
  plan.trials = trials_;
  plan.changes = changes_;
  plan.followed = followed_;
  plan.measured = finish_;
  plan.planning = planning_;
  plan.elapsed = elapsed_;
  plan.reason = "no plan yet: the first steps travel as fp32";
  if (planned_) {
    plan.predicted = finish_with(current());
    plan.uncompressed = finish_with(all_fp32());
    plan.exposed = std::max(0.0, plan.predicted - last_ready());
    plan.reason = explain(plan);
    if (finish_ > 0 && !periods_.empty()) {
      const double waited = std::max(0.0, finish_ - last_ready());
      recommend_for(plan, std::max(0.0, median(periods_) - waited));
    }
  }
  for (const auto& [id, bucket] : buckets_) plan.buckets.push_back(show(id, bucket));
  return plan;
}

}  // namespace thinreduce
