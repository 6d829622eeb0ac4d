// The course of a session: what the planner does in which step.
#include "thinreduce/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "thinreduce/plan/steps_in_common.h"

namespace thinreduce {
namespace {

bool ratio_differs(double ratio, double usual) {
  return std::abs(ratio / usual - 1) > Planner::kTolerance;
}

// Returns the seconds of a probe of the link (engine/probe.h), before all trials but the first.
double probe_seconds(const Link& link) {
  constexpr double kMessages = 12;
  constexpr double kBytes = 128 * 1024;
  const double wire = link.bytes_per_second > 0 ? kBytes / link.bytes_per_second : 0;
  return kMessages * link.latency.count() + wire;
}

}  // namespace

void Planner::note(std::uint32_t bucket, std::uint64_t elements, const BucketTimes& times) {
  const std::lock_guard lock(mutex_);
  Known& known = buckets_[bucket];
  known.elements = elements;
  known.seen_at = opened_;
  // The figures are those of the step before. Trials in it delayed its buckets.
  if (known.noted && tried_at_ > 0 && opened_ == tried_at_ + 1) return;
  // The first step of a bucket allocates memory, so the second one replaces its figure.
  known.ready = ++known.steps > 2 ? 0.7 * known.ready + 0.3 * times.ready : times.ready;
  known.last = times;
  known.noted = true;
}

void Planner::note_period(double seconds) {
  const std::lock_guard lock(mutex_);
  elapsed_ += seconds;
  periods_.push_back(seconds);
  if (periods_.size() > kWindow) periods_.pop_front();
}

void Planner::note_planning(double seconds) {
  const std::lock_guard lock(mutex_);
  planning_ += seconds;
}

void Planner::set_link(const Link& link) {
  set_conditions({.link = link});
}

Conditions Planner::conditions() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

void Planner::set_conditions(const Conditions& conditions) {
  const std::lock_guard lock(mutex_);
  now_ = conditions;
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
  if (planned_) learn_usual_ratio();
  if (planned_ && (reconsider() || follow_link() || fall_back() || come_back())) {
    return Task::change_plan;
  }
  sampling_ = planned_ ? is_off() || has_new_bucket() || others_are_due() : opened_ > kFirstSteps;
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

bool Planner::has_new_bucket() const {
  if (opened_ < tried_at_ + interval_) return false;
  return std::ranges::any_of(buckets_, [&](const auto& entry) {
    const Known& bucket = entry.second;
    return is_active(bucket) && !was_tried(bucket) && gains(bucket);
  });
}

std::optional<Planner::Observed> Planner::observe() const {
  Observed step;
  const BucketTimes* first = nullptr;
  for (const auto& [id, bucket] : buckets_) {
    if (!is_active(bucket)) continue;
    if (bucket.seen_at + 1 != opened_) return {};  // incomplete
    const BucketTimes& last = bucket.last;
    step.finish = std::max(step.finish, last.ready + last.seconds);
    step.busy += last.busy;
    if (first == nullptr || last.ready < first->ready) first = &last;
  }
  if (!(step.finish > 0)) return {};
  // The statements of later buckets may wait behind the bytes of earlier ones.
  const double known = usual_ ? usual_->latency : now_.link.latency.count();
  step.latency = first->latency > 0 ? first->latency : known;
  const double late = std::max(0.0, first->wait - step.latency);  // the last rank's begin
  step.finish = std::max(step.finish - late, 0.0);
  return step;
}

// The figures that came in since the last step opened are those of the step before it.
void Planner::watch() {
  if (tried_at_ > 0 && opened_ == tried_at_ + 2) return;  // note() left them out
  const std::optional<Observed> step = observe();
  if (!step) return;
  if (!planned_) {
    if (!compresses()) note_uncompressed(step->finish);
    return;
  }
  if (trials_ == 1 && began_with_fp32_ && opened_ == tried_at_ + 1) {
    // The last step before the plan; the ones before it allocated memory.
    note_uncompressed(step->finish);
    for (auto& [id, bucket] : buckets_) take_step_as_trial(bucket);
    predict_all();
    has_last_fp32_ = true;
    const double fp32 = finish_of_last(all_fp32());
    if (fp32 > 0) fp32_ratio_ = step->finish / fp32;
  }
  if (opened_ < settled_at_) return;
  finish_ = step->finish;
  const double predicted = finish_of_last(current());
  if (!(predicted > 0)) return;
  ratios_.push_back(step->finish / predicted);
  if (ratios_.size() > kWindow) ratios_.pop_front();
  seen_.push_back(
      {.ratio = step->finish / predicted, .busy = step->busy, .latency = step->latency});
  if (seen_.size() > kWindow) seen_.pop_front();
}

void Planner::note_uncompressed(double seconds) {
  uncompressed_ = uncompressed_ > 0 ? std::min(uncompressed_, seconds) : seconds;
}

void Planner::learn_usual_ratio() {
  if (ratios_.size() < kWindow || usual_ratio_ > 0) return;
  usual_ratio_ = median(ratios_);
  // A busy moment only ever makes a step look slower, so the fastest one counts.
  const double measured = *std::ranges::min_element(ratios_) * finish_with(current());
  if (!compresses()) {
    if (left_) left_->is_better = left_->seconds <= measured;
    if (left_) fp32_ratio_ = measured / finish_with(all_fp32());
    return;
  }
  // The link may have changed since, so the comparison is with fp32 as it would be now.
  const double fp32 = fp32_ratio_ * finish_with(all_fp32());
  slower_ = fp32 > 0 && measured > (1 + kWorthwhile) * fp32;
  if (slower_) left_ = Left{.choices = current(), .seconds = measured};
}

bool Planner::is_off() {
  if (ratios_.size() < kWindow) return false;
  const double ratio = median(ratios_);
  const bool changed = all_differ(ratios_, usual_ratio_, kTolerance) ||
                       (previous_ratio_ > 0 && all_differ(ratios_, previous_ratio_, kTolerance));
  if (changed && ratio_differs(ratio, 1) && is_large_change(ratio) && may_react()) {
    interval_ = kMinInterval;
    if (opened_ < tried_at_ + interval_) return false;
    react();
    return true;
  }
  if (!changed && ratio_differs(ratio, usual_ratio_)) return false;  // a change has begun, or noise
  if (opened_ < hold_until_) return false;
  if (std::exchange(hold_until_, 0) > 0 && !compresses()) return true;
  return ratio_differs(ratio, 1) && opened_ >= tried_at_ + std::max(interval_, affordable_);
}

bool Planner::is_large_change(double ratio) const {
  double change = std::abs(ratio - usual_ratio_);
  if (previous_ratio_ > 0) change = std::max(change, std::abs(ratio - previous_ratio_));
  return change > kLargeChange * usual_ratio_ &&
         cost_ <= kStepsToGain * change * finish_with(current());
}

bool Planner::fall_back() {
  if (!slower_) return false;
  const std::optional<Left> left = left_;
  adopt(all_fp32());
  left_ = left;
  hold_until_ = opened_ + hold_;
  hold_ *= 2;
  return true;
}

bool Planner::reconsider() {
  if (!std::exchange(has_last_fp32_, false)) return false;
  const Choices choices = best();
  if (choices == current()) return false;
  adopt(choices);
  return true;
}

bool Planner::come_back() {
  if (!left_ || !left_->is_better) return false;
  Choices choices = current();
  for (const auto& [id, choice] : left_->choices) {
    if (choices.contains(id)) choices[id] = choice;
  }
  hold_until_ = 0;
  adopt(choices);
  return true;
}

const Planner::Choices& Planner::decide(const std::map<std::uint32_t, Trials>& trials,
                                        const Link& link) {
  const std::lock_guard lock(mutex_);
  now_ = {.link = link};
  double cost = probe_seconds(link);  // further trials begin with one
  double left_out = 0;
  for (const auto& [id, one] : trials) {
    Known& bucket = buckets_[id];
    bucket.trials = one;
    bucket.trials.link = link;
    cost += one.cost;
    left_out += one.left_out;
  }
  for (auto& [id, bucket] : buckets_) take_step_as_trial(bucket);
  predict_all();
  ++trials_;
  if (!planned_) began_with_fp32_ = !compresses();
  const bool held = opened_ < hold_until_ && !compresses();
  const Choices before = current();
  const Choices choices = held ? before : best();
  interval_ = choices != before ? kMinInterval : std::min(2 * interval_, kMaxInterval);
  adopt(choices);
  others_tried_ = others_tried_ || others_are_due();
  count_cost(cost, left_out);
  return choices_;
}

void Planner::count_cost(double tried, double left_out) {
  const double step = std::max(finish_with(current()), 1e-9);
  const auto steps = [&](double cost) {
    return static_cast<std::uint64_t>(
        std::clamp(cost / (kTrialFraction * step), double{kMinInterval}, double{kMaxInterval}));
  };
  cost_ = tried;
  affordable_ = steps(tried);
  // Once they were tried, the others come back only with a bucket that has one of them.
  const bool wait = left_out > 0 && !others_tried_;
  others_at_ = wait ? opened_ + steps(tried + left_out) : 0;
}

bool Planner::tries_others() const {
  const std::lock_guard lock(mutex_);
  return others_are_due() || std::ranges::any_of(buckets_, [&](const auto& entry) {
           const Role role = options_.candidates[entry.second.choice].role;
           return role == Role::substitute || role == Role::other;
         });
}

void Planner::adopt(const Choices& choices) {
  for (auto& [id, bucket] : buckets_) {
    if (bucket.choice != choices.at(id)) ++changes_;
    bucket.choice = choices.at(id);
  }
  planned_ = true;
  slower_ = false;
  left_.reset();
  ratios_.clear();
  seen_.clear();
  usual_.reset();
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

}  // namespace thinreduce
