#include "thinreduce/engine/trials.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "thinreduce/collective/choose.h"
#include "thinreduce/method/bucket.h"

namespace thinreduce {
namespace {

constexpr std::size_t kSmallestSample = std::size_t{16} * 1024;
constexpr std::size_t kLargestSample = std::size_t{256} * 1024;
// The time that an uncompressed sample may take on the link.
constexpr double kSampleSeconds = 0.02;
// A latency beside which a sample is computed in no time.
constexpr double kLongLatency = 1e-3;
// Magnitudes of a sample are cut off here: a candidate whose sums overflow must not end a session
// whose own step succeeded, and 256 Ki squares still add up in float32.
constexpr float kLargestMagnitude = 1e15F;
// A larger part of a bucket says hardly more, and trials of it take as long as steps.
constexpr std::size_t kLargestPart = 16;
// Where computing counts, a candidate runs twice, because its first run allocates memory. Where the
// link is slow, it runs once. The shortest time counts.
constexpr int kRuns = 2;
// Max runs of a candidate that is not the fastest, and would be if it computed in no time.
constexpr int kMaxRuns = 3;
// The error of the next coarser setting of the ladder is at least this many times larger, and that
// of the next finer one at most this many times smaller.
constexpr double kMinErrorRatio = 3;
constexpr double kMaxErrorRatio = 10;
// The part of its bytes that the next coarser setting of the ladder may save.
constexpr double kRefinement = 0.3;
// A candidate runs again if it may be faster by this part of the time: a busy moment matters then.
constexpr double kBusyMoment = 0.25;
// The bits that an uncompressed element takes.
constexpr double kFloatBits = 32;
// Candidates that are seldom chosen are tried at once if this many steps can make up for the
// trials.
constexpr double kStepsToGainByOthers = 1;

// Return whether the time of a trial is mostly the link's, and whether it is mostly that of bytes.
bool is_rate_slow(const Link& link) {
  const double rate = link.bytes_per_second;
  return rate > 0 && double{kSmallestSample * sizeof(float)} / rate > kSampleSeconds / 4;
}
bool is_slow(const Link& link) {
  return link.latency.count() > kLongLatency || is_rate_slow(link);
}

// The trials of one bucket. All its decisions follow from agreed figures, so all ranks try the
// same.
class BucketTrials {
 public:
  BucketTrials(const TrialSetup& setup, const RegisteredBucket& bucket, const Sample& sample)
      : setup_(setup),
        sample_(sample),
        id_{.bucket = bucket.id(), .step = 0, .layout_hash = bucket.hash},
        exact_(sample.mean) {
    const Exchange exchange = setup.make_exchange(id_);
    link_ = exchange.link;
    world_ = exchange.size();
    is_link_slow_ = is_slow(link_);
    const std::size_t candidates = setup.options.candidates.size();
    trials_.times = static_cast<double>(bucket.elements() - bucket.raw) /
                    static_cast<double>(sample.values.size());
    trials_.tried.resize(candidates);
    trials_.figures.resize(candidates);
    for (std::size_t i = 1; i < candidates; ++i) {
      const Role role = setup.options.candidates[i].role;
      if (role == Role::substitute) substitute_ = i;
      (role == Role::halved ? halved_ : role == Role::ladder ? ladder_ : others_).push_back(i);
    }
  }

  Planner::Trials run(const RegisteredBucket& bucket) {
    if (setup_.options.try_all) {
      try_group({0});
      for (const Candidates* list : {&halved_, &ladder_, &others_}) try_in_turn(*list);
    } else if (!ladder_.empty() && bytes_decide(bucket)) {
      try_on_slow_link();
    } else {
      try_on_fast_link();
    }
    return std::move(trials_);
  }

 private:
  using Candidates = std::vector<std::size_t>;
  struct Entry {
    std::size_t candidate;
    std::unique_ptr<Trial> trial;
  };
  using Group = std::vector<Entry>;

  // Returns whether even half of the bytes take far longer than the computing of the ladder.
  [[nodiscard]] bool bytes_decide(const RegisteredBucket& bucket) const {
    if (is_rate_slow(link_)) return true;
    if (!(link_.bytes_per_second > 0) || !(sample_.busy > 0)) return false;
    const auto bytes = static_cast<double>((bucket.elements() - bucket.raw) * sizeof(float));
    const double half = bytes * (world_ - 1) / world_ / link_.bytes_per_second;
    return half >= 2 * kBusyOfLadder * sample_.busy;
  }

  // The bytes decide. Floats need not be tried if their mean is known, nor halved ones if they
  // can't win.
  void try_on_slow_link() {
    if (exact_.empty()) {
      try_group({0, first_rung()});
    } else {
      assume_fp32();
      try_group({first_rung()});
    }
    climb_ladder();
    const double half = predicted(0).wire / 2 + link_seconds();
    if (!halved_.empty() && half < predicted(fastest()).seconds) try_group(halved_);
    try_others();
  }

  // Computing counts as well: the candidates that need hardly any come first.
  void try_on_fast_link() {
    Candidates first{0};
    first.insert(first.end(), halved_.begin(), halved_.end());
    try_group(first);
    if (ladder_.empty()) return try_while_worthwhile(others_);
    if (!is_worthwhile(1)) return;
    try_group({first_rung()});
    climb_ladder();
    try_others();
  }

  // Returns the setting with which the search for the coarsest that is allowed begins.
  [[nodiscard]] std::size_t first_rung() const { return ladder_[ladder_.size() > 1 ? 1 : 0]; }

  void climb_ladder() {
    for (;;) {
      const std::optional<std::size_t> next = next_rung();
      if (!next) break;
      if (!is_refinement_worthwhile()) return;
      try_group({*next});
    }
    // The substitute sends as few bytes as the third setting, often with a smaller error, and
    // computes for much longer.
    const std::size_t coarser = ladder_[std::min<std::size_t>(2, ladder_.size() - 1)];
    if (!substitute_ || !is_rate_slow(link_) || is_allowed(coarser)) return;
    if (is_refinement_worthwhile()) try_group({*substitute_});
  }

  // Returns whether a trial of the next setting may be worth its cost.
  [[nodiscard]] bool is_refinement_worthwhile() const {
    const Prediction best = predicted(fastest());
    if (!std::ranges::any_of(ladder_, [&](std::size_t i) { return is_allowed(i); })) {
      return is_worthwhile(1);
    }
    return cost_of_trial() <= Planner::kStepsToGain * kRefinement * best.wire;
  }

  // Returns a setting of the ladder that was not tried: a coarser one than those that are allowed,
  // or a finer one if none is, as far as its error may be within the bound.
  [[nodiscard]] std::optional<std::size_t> next_rung() const {
    const double bound = setup_.options.max_error;
    for (std::size_t i = ladder_.size(); i-- > 0;) {
      if (!trials_.tried[ladder_[i]]) continue;
      const double error = trials_.figures[ladder_[i]].error;
      if (error <= bound) {
        const bool coarser = i + 1 < ladder_.size() && !trials_.tried[ladder_[i + 1]];
        if (coarser && kMinErrorRatio * error <= bound) return ladder_[i + 1];
        return {};
      }
      const bool finer = i > 0 && !trials_.tried[ladder_[i - 1]];
      if (finer) {
        if (error <= kMaxErrorRatio * bound) return ladder_[i - 1];
        return {};
      }
    }
    return {};
  }

  // Tries the candidates that are seldom chosen, or notes what that would cost.
  void try_others() {
    if (setup_.try_others) return try_while_worthwhile(others_);
    const Prediction best = predicted(fastest());
    // Fewer bits than these have a larger error, if the elements are normally distributed.
    // The logarithm is linear between powers of two: that of the C library may differ between CPUs.
    int exponent = 0;
    const double fraction = std::frexp(setup_.options.max_error, &exponent);
    const double least_bits = std::max(0.0, -0.5 * (exponent + 2 * fraction - 2));
    const double bits = kFloatBits * best.bytes / std::max(1.0, predicted(0).bytes);
    const double gain =
        std::min(possible_gain(), best.wire * std::max(0.0, 1 - least_bits / std::max(bits, 1e-9)));
    if (gain < Planner::kPossibleGain * best.seconds) return;
    const double cost = static_cast<double>(others_.size()) * cost_of_trial();
    if (cost <= kStepsToGainByOthers * gain) return try_while_worthwhile(others_);
    trials_.left_out = cost;
  }

  // Where a latency is long, all of them are one group.
  void try_while_worthwhile(const Candidates& candidates) {
    if (is_link_slow_) {
      if (is_worthwhile(candidates.size())) try_group(candidates);
      return;
    }
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (!is_worthwhile(candidates.size() - i)) return;
      try_group({candidates[i]});
    }
  }

  void try_in_turn(const Candidates& candidates) {
    for (const std::size_t one : candidates) try_group({one});
  }

  // Tries candidates, after which the ranks agree on their figures. Coarser settings of a method
  // are left out if a finer one is too coarse.
  void try_group(const Candidates& candidates) {
    Group group;
    for (const std::size_t i : candidates) {
      const Spec& spec = setup_.options.candidates[i].spec;
      if (trials_.tried[i]) continue;
      if (too_coarse_.contains(spec.name()) && i > too_coarse_.at(spec.name())) continue;
      group.push_back(
          {i, std::make_unique<Trial>(Trial::Setup{.make_exchange = setup_.make_exchange,
                                                   .seed = setup_.seed,
                                                   .id = id_,
                                                   .times = trials_.times},
                                      spec, sample_.values)});
      const Trial& trial = *group.back().trial;
      trials_.tried[i] = true;
      run(group.back(), is_link_slow_ ? 1 : kRuns);
      if (i == 0) exact_.assign(trial.mean().begin(), trial.mean().end());
      double& error = trials_.figures[i].error;
      error = relative_error(trial.mean(), exact_);
      if (error > setup_.options.max_error) too_coarse_[spec.name()] = i;
    }
    agree(group);
    repeat_losers(group);
  }

  void run(Entry& entry, int times) {
    TrialFigures& figures = trials_.figures[entry.candidate];
    const double error = figures.error;
    figures = entry.trial->run(times);
    figures.error = error;
    runs_ += times;
  }

  // Replaces the figures of the candidates by the largest of any rank, and counts their cost.
  void agree(const Group& group) {
    if (group.empty()) return;
    std::vector<TrialFigures*> figures;
    for (const Entry& one : group) figures.push_back(&trials_.figures[one.candidate]);
    FrameId id = id_;
    id.step = ++agreements_;
    Exchange exchange = setup_.make_exchange(id);
    agree_on_figures(exchange, figures);
    double seconds = 0;
    for (const TrialFigures* one : figures) seconds += one->seconds;
    tried_ += group.size();
    trials_.cost += std::exchange(runs_, 0) * seconds / static_cast<double>(figures.size());
  }

  // Lets candidates run again that are not the fastest only because of the time in which they
  // computed or waited for another rank: a machine may have been busy in that moment.
  void repeat_losers(Group& group) {
    for (;;) {
      Group again;
      for (Entry& one : group) {
        if (one.trial->runs() < kMaxRuns && may_be_fastest(one.candidate)) {
          again.push_back(std::move(one));
        }
      }
      if (again.empty()) return;
      for (Entry& one : again) run(one, 1);
      agree(again);
      group = std::move(again);
    }
  }

  // Returns whether a candidate that is not the fastest would be if it computed in no time.
  [[nodiscard]] bool may_be_fastest(std::size_t candidate) const {
    const std::size_t best = fastest();
    if (candidate == best || !is_allowed(candidate)) return false;
    const double gain = predicted(best).seconds - predicted(candidate).wire - link_seconds();
    return gain >= kBusyMoment * predicted(best).seconds &&
           trials_.figures[candidate].seconds <= Planner::kStepsToGain * gain;
  }

  // Gives fp32 the figures that follow from the link.
  void assume_fp32() {
    const std::size_t sample = sample_.values.size() * sizeof(float);
    const auto bucket = static_cast<std::size_t>(trials_.times * static_cast<double>(sample));
    const SumBy by = choose_sum(world_, bucket, link_, true);
    const double peers = world_ - 1;
    const double copies = by == SumBy::direct ? peers : 2 * peers / world_;
    trials_.tried[0] = true;
    const double busy = sample_.busy / trials_.times;
    trials_.figures[0] = {.seconds = busy + predict_seconds(by, world_, sample, link_),
                          .decode = busy,
                          .bytes = copies * static_cast<double>(sample)};
  }

  // Returns the seconds of latency that no candidate avoids.
  [[nodiscard]] double link_seconds() const {
    return (1 + kLatenciesPerReduce) * link_.latency.count();
  }
  [[nodiscard]] Prediction predicted(std::size_t candidate) const {
    return predict(trials_.figures[candidate], trials_.times, link_);
  }
  [[nodiscard]] bool is_allowed(std::size_t candidate) const {
    return trials_.tried[candidate] && trials_.figures[candidate].error <= setup_.options.max_error;
  }
  [[nodiscard]] std::size_t fastest() const {
    std::size_t best = 0;
    for (std::size_t i = 1; i < trials_.tried.size(); ++i) {
      if (is_allowed(i) && predicted(i).seconds < predicted(best).seconds) best = i;
    }
    return best;
  }

  // Returns the seconds by which the fastest candidate so far may be too slow. The others compute
  // for at least as long as the halved ones and the ladder, as far as these were tried.
  [[nodiscard]] double possible_gain() const {
    double least_busy = 0;
    for (const Candidates* method : {&halved_, &ladder_}) {
      std::optional<double> least;
      for (const std::size_t i : *method) {
        if (!trials_.tried[i]) continue;
        least = std::min(least.value_or(predicted(i).busy()), predicted(i).busy());
      }
      least_busy = std::max(least_busy, least.value_or(0));
    }
    const Prediction best = predicted(fastest());
    return best.seconds - best.latency - least_busy;
  }

  [[nodiscard]] double cost_of_trial() const {
    return trials_.cost / static_cast<double>(std::max<std::size_t>(tried_, 1));
  }

  // Returns whether this many further candidates might gain more than their trials cost.
  [[nodiscard]] bool is_worthwhile(std::size_t further) const {
    const double gain = possible_gain();
    return gain >= Planner::kPossibleGain * predicted(fastest()).seconds &&
           static_cast<double>(further) * cost_of_trial() <= Planner::kStepsToGain * gain;
  }

  const TrialSetup& setup_;
  const Sample& sample_;
  FrameId id_;
  std::vector<float> exact_;  // the mean of the sample
  Link link_;
  int world_ = 1;
  bool is_link_slow_ = false;
  Candidates halved_;  // these three most exact first
  Candidates ladder_;
  Candidates others_;
  std::optional<std::size_t> substitute_;  // one of the others
  Planner::Trials trials_;
  std::uint64_t agreements_ = 0;
  std::size_t tried_ = 0;
  int runs_ = 0;                                   // of candidates, since the last agreement
  std::map<std::string, std::size_t> too_coarse_;  // by method, the setting that is
};

}  // namespace

std::size_t sample_size(const Link& link, int world, std::size_t elements) {
  const double least = std::min<double>(
      kLargestSample, double{kSmallestSample} * std::max(1.0, static_cast<double>(world) / 4));
  const double most =
      std::clamp(static_cast<double>(elements / kLargestPart), least, double{kLargestSample});
  if (!(link.bytes_per_second > 0)) return static_cast<std::size_t>(most);
  const double floats = kSampleSeconds * link.bytes_per_second / sizeof(float);
  return static_cast<std::size_t>(std::clamp(floats, least, most));
}

void take_sample(const BucketLayout& layout, std::span<const float> values, std::size_t wanted,
                 std::vector<float>& sample) {
  std::size_t elements = 0;
  for_compressed(layout, [&](std::size_t, std::size_t count) { elements += count; });
  const double fraction =
      std::min(1.0, static_cast<double>(wanted) / static_cast<double>(elements));
  sample.clear();
  for_compressed(layout, [&](std::size_t first, std::size_t count) {
    const auto taken = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(count)));
    const auto run = values.subspan(first + (count - taken) / 2, taken);
    std::ranges::transform(run, std::back_inserter(sample), [](float value) {
      return std::clamp(value, -kLargestMagnitude, kLargestMagnitude);
    });
  });
}

Planner::Trials try_candidates(const TrialSetup& setup, const RegisteredBucket& bucket,
                               const Sample& sample) {
  return BucketTrials(setup, bucket, sample).run(bucket);
}

}  // namespace thinreduce
