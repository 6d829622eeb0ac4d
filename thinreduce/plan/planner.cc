#include "thinreduce/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace thinreduce {
namespace {

// An agreement and a sum by owners, and one to spare.
constexpr double kLatenciesOfRaw = 4;

double median(std::deque<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool differs(double ratio, double usual) {
  return std::abs(ratio / usual - 1) > Planner::kTolerance;
}

}  // namespace

void Planner::note(std::uint32_t bucket, std::uint64_t elements, double ready, double seconds) {
  const std::lock_guard lock(mutex_);
  Known& known = buckets_[bucket];
  known.elements = elements;
  known.seen_at = opened_;
  // The figures are those of the step before. Trials in it delayed its buckets.
  if (known.noted && tried_at_ > 0 && opened_ == tried_at_ + 1) return;
  known.last_ready = ready;
  known.ready = known.noted ? 0.7 * known.ready + 0.3 * ready : ready;
  known.seconds = seconds;
  known.noted = true;
}

Planner::Task Planner::open_step() {
  const std::lock_guard lock(mutex_);
  ++opened_;
  if (frozen_) return Task::none;
  watch();
  if (sampling_) {
    sampling_ = false;
    tried_at_ = opened_;
    return Task::try_candidates;
  }
  sampling_ = planned_ ? is_off() || has_new_bucket() : opened_ > kFirstSteps;
  return sampling_ ? Task::keep_samples : Task::none;
}

void Planner::freeze() {
  const std::lock_guard lock(mutex_);
  frozen_ = true;
}

std::uint64_t Planner::opened() const {
  const std::lock_guard lock(mutex_);
  return opened_;
}

bool Planner::is_active(const Known& bucket) const {
  return bucket.noted && opened_ <= bucket.seen_at + kForgotten;
}

bool Planner::compresses() const {
  return std::ranges::any_of(buckets_, [](const auto& entry) { return entry.second.choice != 0; });
}

bool Planner::has_new_bucket() const {
  if (opened_ < tried_at_ + interval_) return false;
  return std::ranges::any_of(buckets_, [&](const auto& entry) {
    const Known& bucket = entry.second;
    return is_active(bucket) && bucket.elements > 0 && bucket.predictions.empty();
  });
}

// The figures that came in since the last step opened are those of the step before it.
void Planner::watch() {
  if (tried_at_ > 0 && opened_ == tried_at_ + 2) return;  // note() left them out
  double finish = 0;
  for (const auto& [id, bucket] : buckets_) {
    if (!is_active(bucket)) continue;
    if (bucket.seen_at + 1 != opened_) return;  // incomplete
    finish = std::max(finish, bucket.last_ready + bucket.seconds);
  }
  if (!(finish > 0)) return;
  if (!planned_) {
    if (!compresses()) uncompressed_ = finish;
    return;
  }
  if (opened_ < settled_at_) return;
  finish_ = finish;
  const double predicted = finish_with(current(), &Known::last_ready);
  if (!(predicted > 0)) return;
  ratios_.push_back(finish / predicted);
  if (ratios_.size() > kWindow) ratios_.pop_front();
}

bool Planner::is_off() {
  if (ratios_.size() < kWindow) return false;
  const double ratio = median(ratios_);
  if (usual_ratio_ == 0) {
    usual_ratio_ = ratio;
    const double measured = ratio * finish_with(current());
    // The link may have changed since, so the comparison is with fp32 as it would be now.
    const double fp32 = fp32_ratio_ * finish_with(all_fp32());
    slower_ = compresses() && fp32 > 0 && measured > (1 + kWorthwhile) * fp32;
  }
  const bool changed =
      differs(ratio, usual_ratio_) || (previous_ratio_ > 0 && differs(ratio, previous_ratio_));
  if (changed) interval_ = kLeastInterval;
  if (changed && differs(ratio, 1)) return opened_ >= tried_at_ + interval_;
  if (opened_ < hold_until_) return false;
  const std::uint64_t wait = slower_ ? kLeastInterval : std::max(interval_, affordable_);
  return (slower_ || differs(ratio, 1)) && opened_ >= tried_at_ + wait;
}

bool Planner::is_allowed(const Known& bucket, std::size_t candidate) const {
  return candidate == 0 || (bucket.trials.tried[candidate] &&
                            bucket.trials.figures[candidate].error <= options_.max_error);
}

double Planner::finish_with(const Choices& choices, double Known::*ready) const {
  std::vector<TimedBucket> timed;
  for (const auto& [id, bucket] : buckets_) {
    if (!is_active(bucket)) continue;
    TimedBucket& one = timed.emplace_back();
    one.ready = bucket.*ready;
    // A bucket without trials takes as long as it did. One of raw tensors alone is small: its
    // time was a wait for the others.
    one.cost.seconds = bucket.seconds;
    if (bucket.elements == 0) {
      one.cost.seconds = std::min(bucket.seconds, kLatenciesOfRaw * link_.latency.count());
    }
    if (!bucket.predictions.empty()) one.cost = bucket.predictions[choices.at(id)];
  }
  std::stable_sort(timed.begin(), timed.end(),
                   [](const auto& a, const auto& b) { return a.ready < b.ready; });
  return predict_finish(timed);
}

Planner::Choices Planner::current() const {
  Choices choices;
  for (const auto& [id, bucket] : buckets_) choices[id] = bucket.choice;
  return choices;
}

Planner::Choices Planner::all_fp32() const {
  Choices choices;
  for (const auto& [id, bucket] : buckets_) choices[id] = 0;
  return choices;
}

// The fastest candidate of every bucket alone, then better ones for buckets that share the link and
// the processor, one bucket at a time.
Planner::Choices Planner::fastest() const {
  Choices choices = current();
  for (const auto& [id, bucket] : buckets_) {
    if (bucket.predictions.empty()) continue;
    choices[id] = 0;
    for (std::size_t i = 1; i < bucket.predictions.size(); ++i) {
      if (!is_allowed(bucket, i)) continue;
      if (bucket.predictions[i].seconds < bucket.predictions[choices[id]].seconds) choices[id] = i;
    }
  }
  for (const auto& [id, bucket] : buckets_) {
    double best = finish_with(choices);
    for (std::size_t i = 0; i < bucket.predictions.size(); ++i) {
      if (!is_allowed(bucket, i)) continue;
      Choices other = choices;
      other[id] = i;
      const double finish = finish_with(other);
      if (finish >= best) continue;
      best = finish;
      choices = std::move(other);
    }
  }
  return choices;
}

Planner::Choices Planner::more_exact(Choices choices) const {
  const double limit = (1 + kWorthwhile) * finish_with(choices);
  for (const auto& [id, bucket] : buckets_) {
    if (bucket.predictions.empty()) continue;
    for (std::size_t i = 0; i < choices[id]; ++i) {
      if (!is_allowed(bucket, i)) continue;
      Choices other = choices;
      other[id] = i;
      if (finish_with(other) > limit) continue;
      choices = std::move(other);
      break;
    }
  }
  return choices;
}

const std::map<std::uint32_t, std::size_t>& Planner::decide(
    const std::map<std::uint32_t, Trials>& trials, const Link& link) {
  const std::lock_guard lock(mutex_);
  link_ = link;
  double cost = 0;
  for (const auto& [id, one] : trials) {
    Known& bucket = buckets_[id];
    bucket.trials = one;
    bucket.predictions.clear();
    for (const TrialFigures& figures : one.figures) {
      cost += one.runs * figures.seconds;
      bucket.predictions.push_back(predict(figures, one.times, link));
    }
  }
  ++trials_;
  const double fp32 = finish_with(all_fp32());
  if (!planned_ && uncompressed_ > 0 && fp32 > 0) fp32_ratio_ = uncompressed_ / fp32;
  const Choices before = current();
  Choices choices = more_exact(fastest());
  const bool can_stay =
      planned_ && std::ranges::all_of(buckets_, [&](const auto& entry) {
        return entry.second.predictions.empty() || is_allowed(entry.second, entry.second.choice);
      });
  if (can_stay && finish_with(choices) > (1 - kHysteresis) * finish_with(before)) choices = before;
  const bool fell_back = slower_ && choices == before;
  if (fell_back) choices = all_fp32();
  adopt(choices, fell_back);
  const double step = std::max(finish_with(current()), 1e-9);
  affordable_ = static_cast<std::uint64_t>(
      std::clamp(cost / (kTrialShare * step), double{kLeastInterval}, double{kMostInterval}));
  return choices_;
}

void Planner::adopt(const Choices& choices, bool fell_back) {
  std::uint64_t changed = 0;
  for (auto& [id, bucket] : buckets_) {
    if (bucket.choice != choices.at(id)) ++changed;
    bucket.choice = choices.at(id);
  }
  changes_ += changed;
  interval_ = changed > 0 ? kLeastInterval : std::min(2 * interval_, kMostInterval);
  if (fell_back) {
    hold_until_ = opened_ + hold_;
    hold_ *= 2;
  }
  planned_ = true;
  slower_ = false;
  ratios_.clear();
  if (usual_ratio_ > 0) previous_ratio_ = usual_ratio_;
  usual_ratio_ = 0;
  finish_ = 0;
  settled_at_ = opened_ + 3;  // figures of a step come in one step later, and the first is slow
  choices_ = choices;
}

void Planner::set_choice(std::uint32_t bucket, std::size_t candidate) {
  const std::lock_guard lock(mutex_);
  buckets_[bucket].choice = candidate;
}

void Planner::forget(std::uint32_t bucket) {
  const std::lock_guard lock(mutex_);
  buckets_.erase(bucket);
}

std::string Planner::explain(double uncompressed, double predicted) const {
  const auto ms = [](double seconds) { return fmt::format("{:.3g} ms", 1000 * seconds); };
  if (!compresses()) {
    return fmt::format(
        "nothing is compressed: no method with an error of at most {} ends a step earlier than "
        "fp32, which takes {} from the first bucket of a step to its last mean",
        options_.max_error, ms(uncompressed));
  }
  return fmt::format("from the first bucket of a step to its last mean it takes {}, with fp32 {}",
                     ms(predicted), ms(uncompressed));
}

Plan Planner::plan() const {
  const std::lock_guard lock(mutex_);
  Plan plan;
  plan.active = true;
  plan.link = link_;
  plan.trials = trials_;
  plan.changes = changes_;
  plan.measured = finish_;
  if (planned_) {
    plan.predicted = finish_with(current());
    plan.uncompressed = finish_with(all_fp32());
    plan.reason = explain(plan.uncompressed, plan.predicted);
  } else {
    plan.reason = "no plan yet: the first steps travel as fp32";
  }
  for (const auto& [id, bucket] : buckets_) {
    PlanBucket& one = plan.buckets.emplace_back();
    one.id = id;
    one.elements = bucket.elements;
    one.ready = bucket.ready;
    one.sample_fraction = 1 / bucket.trials.times;
    one.spec = options_.candidates[bucket.choice].short_text();
    for (std::size_t i = 0; i < bucket.predictions.size(); ++i) {
      const Prediction& cost = bucket.predictions[i];
      one.candidates.push_back({.spec = options_.candidates[i].short_text(),
                                .tried = bucket.trials.tried[i],
                                .allowed = is_allowed(bucket, i),
                                .error = bucket.trials.figures[i].error,
                                .latency = cost.latency,
                                .busy = cost.busy,
                                .wire = cost.wire,
                                .seconds = cost.seconds,
                                .bytes = cost.bytes});
    }
  }
  return plan;
}

}  // namespace thinreduce
