// The choice among the candidates, by their predicted costs.
#include <algorithm>
#include <string>

#include "thinreduce/plan/planner.h"

namespace thinreduce {
namespace {

// An agreement and a sum by owners, and one to spare.
constexpr double kLatenciesOfRaw = 4;
// Trials of two candidates, and two agreements.
constexpr double kLatenciesOfTrials = 8;
// The error of the halved candidate, bf16, without a trial: at most half of its last bit in each of
// two roundings.
constexpr double kErrorOfHalved = 2.0 / (256 * 256);

}  // namespace

bool Planner::compresses() const {
  return std::ranges::any_of(buckets_, [](const auto& entry) { return entry.second.choice != 0; });
}

bool Planner::was_tried(const Known& bucket) {
  return !bucket.trials.tried.empty() && !bucket.trials.assumed;
}

bool Planner::is_allowed(const Known& bucket, std::size_t candidate) const {
  return candidate == 0 || (bucket.trials.tried[candidate] &&
                            bucket.trials.figures[candidate].error <= options_.max_error);
}

double Planner::uncompressed_bytes(std::uint64_t elements) const {
  const double others = static_cast<double>(world_ - 1) / world_;
  return 2 * others * sizeof(float) * static_cast<double>(elements);
}

bool Planner::may_beat_halved(const Known& bucket) const {
  const Role used = options_.candidates[bucket.choice].role;
  const double times = used == Role::uncompressed ? kBusyOfLadder
                       : used == Role::halved     ? kBusyOfLadder / 2
                                                  : 0;
  const double half = uncompressed_bytes(bucket.elements) / now_.link.bytes_per_second / 2;
  return times * bucket.last.busy < half;
}

bool Planner::gains(const Known& bucket) const {
  if (!link_gains(bucket.elements)) return false;
  return options_.try_all || !(now_.link.bytes_per_second > 0) || may_beat_halved(bucket);
}

bool Planner::link_gains(std::uint64_t elements) const {
  if (elements == 0) return false;
  if (options_.try_all) return true;
  const double rate = now_.link.bytes_per_second;
  const double step = planned_ ? finish_with(all_fp32()) : uncompressed_;
  if (!(step > 0)) return true;
  if (!(rate > 0)) return false;
  const double gain = uncompressed_bytes(elements) / rate;
  // The first trials, each with a few messages that wait for one another.
  const double cost = kLatenciesOfTrials * now_.link.latency.count();
  const double paid =
      std::max(kStepsToGain * gain, kTrialFraction * static_cast<double>(opened_) * step);
  return gain >= kPossibleGain * step && cost <= paid;
}

bool Planner::link_may_gain(const std::map<std::uint32_t, std::uint64_t>& elements) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(elements, [&](const auto& entry) { return link_gains(entry.second); });
}

double Planner::busy_with_fp32(std::uint32_t bucket) const {
  const std::lock_guard lock(mutex_);
  const auto found = buckets_.find(bucket);
  return found != buckets_.end() && found->second.choice == 0 ? found->second.last.busy : 0;
}

bool Planner::may_gain(std::uint32_t bucket, std::uint64_t elements) {
  const std::lock_guard lock(mutex_);
  buckets_[bucket].elements = elements;
  return gains(buckets_[bucket]);
}

template <typename Ready, typename Cost>
double Planner::finish(const Ready& ready, const Cost& cost) const {
  std::vector<TimedBucket> timed;
  for (const auto& [id, bucket] : buckets_) {
    if (!is_active(bucket)) continue;
    TimedBucket& one = timed.emplace_back();
    one.ready = ready(bucket);
    // A bucket without trials takes as long as it did. One of raw tensors alone is small: its
    // time was a wait for the others.
    one.cost.seconds = bucket.last.seconds;
    if (bucket.elements == 0) {
      one.cost.seconds = std::min(bucket.last.seconds, kLatenciesOfRaw * now_.link.latency.count());
    }
    if (!bucket.predictions.empty()) one.cost = cost(id, bucket);
  }
  std::stable_sort(timed.begin(), timed.end(),
                   [](const auto& a, const auto& b) { return a.ready < b.ready; });
  return predict_finish(timed);
}

double Planner::finish_with(const Choices& choices) const {
  return finish(
      [](const Known& bucket) { return bucket.ready; },
      [&](std::uint32_t id, const Known& bucket) { return bucket.predictions[choices.at(id)]; });
}

double Planner::finish_of_last(const Choices& choices) const {
  return finish(
      [](const Known& bucket) { return bucket.last.ready; },
      [&](std::uint32_t id, const Known& bucket) { return bucket.predictions[choices.at(id)]; });
}

double Planner::finish_under(const Conditions& conditions, const Choices& choices) const {
  return finish([](const Known& bucket) { return bucket.ready; },
                [&](std::uint32_t id, const Known& bucket) {
                  const Trials& trials = bucket.trials;
                  return predict(trials.figures[choices.at(id)], trials.times, trials.link,
                                 conditions);
                });
}

double Planner::last_ready() const {
  double last = 0;
  for (const auto& [id, bucket] : buckets_) {
    if (is_active(bucket)) last = std::max(last, bucket.ready);
  }
  return last;
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

Planner::Choices Planner::best() const {
  Choices choices = more_exact(fastest());
  const bool can_stay =
      planned_ && std::ranges::all_of(buckets_, [&](const auto& entry) {
        return entry.second.predictions.empty() || is_allowed(entry.second, entry.second.choice);
      });
  const Choices before = current();
  if (can_stay && finish_with(choices) > (1 - kHysteresis) * finish_with(before)) return before;
  return choices;
}

void Planner::predict_all() {
  for (auto& [id, bucket] : buckets_) {
    bucket.predictions.clear();
    for (const TrialFigures& figures : bucket.trials.figures) {
      bucket.predictions.push_back(predict(figures, bucket.trials.times, bucket.trials.link, now_));
    }
  }
}

void Planner::take_step_as_trial(Known& bucket) const {
  if (bucket.elements == 0 || !bucket.noted || bucket.choice != 0 || was_tried(bucket)) return;
  Trials& trials = bucket.trials;
  trials = {.assumed = true,
            .tried = std::vector<bool>(options_.candidates.size()),
            .figures = std::vector<TrialFigures>(options_.candidates.size()),
            .link = now_.link};
  const TrialFigures fp32{.seconds = std::max(0.0, bucket.last.seconds - bucket.last.wait),
                          .decode = bucket.last.busy,
                          .bytes = uncompressed_bytes(bucket.elements)};
  trials.tried[0] = true;
  trials.figures[0] = fp32;
  // The halved candidate sends half of the bytes, and computes about twice as long.
  const double rate = now_.link.bytes_per_second;
  for (std::size_t i = 1; i < options_.candidates.size(); ++i) {
    if (options_.candidates[i].role != Role::halved) continue;
    TrialFigures half = fp32;
    half.bytes /= 2;
    half.decode *= 2;
    half.seconds += fp32.decode - (rate > 0 ? half.bytes / rate : 0);
    half.seconds = std::max(half.seconds, half.decode);
    half.error = kErrorOfHalved;
    trials.tried[i] = true;
    trials.figures[i] = half;
  }
}

}  // namespace thinreduce
