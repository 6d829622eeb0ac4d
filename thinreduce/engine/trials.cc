#include "thinreduce/engine/trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"
#include "thinreduce/method/bucket.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

constexpr std::size_t kSmallestSample = std::size_t{16} * 1024;
constexpr std::size_t kLargestSample = std::size_t{256} * 1024;
// The time that an uncompressed sample may take on the link.
constexpr double kSampleSeconds = 0.02;
// Magnitudes of a sample are cut off here: a candidate whose sums overflow must not end a session
// whose own step succeeded, and 256 Ki squares still add up in float32.
constexpr float kLargestMagnitude = 1e15F;
// A larger part of a bucket says hardly more, and trials of it take as long as steps.
constexpr std::size_t kLargestPart = 16;
// Where computing counts, a candidate runs twice, because its first run allocates memory. Where the
// link is slow, it runs once. The shortest time counts.
constexpr int kRuns = 2;
// Max runs of a candidate that is not the fastest, and would be if it computed in no time.
constexpr int kMostRuns = 3;
// The candidates in the groups of two at the start.
constexpr std::size_t kFirstGroups = 4;

// Returns the squared error of `mean` relative to the sum of squares of `exact`.
double relative_error(std::span<const float> mean, std::span<const float> exact) {
  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double difference = static_cast<double>(mean[i]) - static_cast<double>(exact[i]);
    error += difference * difference;
    energy += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
  }
  if (error == 0) return 0;
  return energy > 0 ? error / energy : 1e30;
}

// Returns whether the time of a trial is mostly the link's.
bool slow(const Link& link) {
  const double rate = link.bytes_per_second;
  return link.latency.count() > kSampleSeconds / 4 ||
         (rate > 0 && double{kSmallestSample * sizeof(float)} / rate > kSampleSeconds / 4);
}

// One candidate on one sample.
class Trial {
 public:
  Trial(const TrialSetup& setup, const Spec& spec, FrameId id, std::span<const float> sample,
        double times)
      : setup_(setup), spec_(spec), id_(id), sample_(sample), times_(times) {
    id_.method = spec.info->wire_id;
    id_.elements = sample.size();
  }

  // Reduces the sample this many times more, and returns the shortest times of all runs: a machine
  // that is busy for a moment only ever makes a run look slower.
  const TrialFigures& run(int times) {
    for (int run = 0; run < times; ++run) {
      const TrialFigures figures = run_once();
      const TrialFigures before = std::exchange(shortest_, figures);
      if (runs_++ == 0) continue;
      shortest_.seconds = std::min(before.seconds, figures.seconds);
      shortest_.encode = std::min(before.encode, figures.encode);
      shortest_.decode = std::min(before.decode, figures.decode);
    }
    return shortest_;
  }
  [[nodiscard]] int runs() const { return runs_; }

  // Returns the mean of the first run.
  [[nodiscard]] std::span<const float> mean() const { return first_mean_; }

 private:
  TrialFigures run_once() {
    Exchange exchange = setup_.make_exchange(id_);
    exchange.stands_for = times_;
    BucketLayout layout;
    layout.id = id_.bucket;
    layout.elements = sample_.size();
    if (!method_) {
      method_ = spec_.make({.layout = layout,
                            .rank = exchange.rank(),
                            .world = exchange.size(),
                            .seed = setup_.seed,
                            .stands_for = times_});
    }
    Transport& transport = exchange.transport();
    mean_.assign(sample_.begin(), sample_.end());
    const Traffic before = transport.total_traffic();
    const auto start = transport.now();
    method_->reduce(Bucket{layout, mean_, {}}, exchange);
    TrialFigures figures;
    figures.seconds = Seconds(transport.now() - start).count();
    figures.encode = exchange.stages.encode;
    figures.decode = exchange.stages.decode;
    figures.bytes = static_cast<double>(transport.total_traffic().bytes_sent - before.bytes_sent);
    ++id_.step;
    if (first_mean_.empty()) first_mean_ = mean_;
    return figures;
  }

  const TrialSetup& setup_;
  const Spec& spec_;
  FrameId id_;
  std::span<const float> sample_;
  double times_;
  std::unique_ptr<Method> method_;
  TrialFigures shortest_;
  int runs_ = 0;
  std::vector<float> mean_;
  std::vector<float> first_mean_;
};

// Replaces each rank's figures by the largest of any rank.
void agree_on_figures(Exchange& exchange, std::vector<TrialFigures*>& figures) {
  constexpr std::size_t kFigures = 4;
  std::vector<double> own;
  for (const TrialFigures* one : figures) {
    own.insert(own.end(), {one->seconds, one->encode, one->decode, one->bytes});
  }
  const auto bytes = std::as_bytes(std::span(own));
  std::vector<double> most(own.size(), 0.0);
  gather(exchange, bytes, bytes.size(), [&](int rank, std::span<const std::byte> got) {
    for (std::size_t i = 0; i < most.size(); ++i) {
      const bool complete = got.size() == bytes.size();
      const double value = complete ? load_value<double>(got, i * sizeof(double)) : -1;
      if (!(value >= 0) || !std::isfinite(value)) {
        throw Error(ErrorCode::bad_frame,
                    fmt::format("rank {} sent invalid figures of a trial: {} of {} bytes, figure "
                                "{} is {}; they must be finite and at least 0",
                                rank, got.size(), bytes.size(), i, value));
      }
      most[i] = std::max(most[i], value);
    }
  });
  for (std::size_t i = 0; i < figures.size(); ++i) {
    figures[i]->seconds = most[kFigures * i];
    figures[i]->encode = most[kFigures * i + 1];
    figures[i]->decode = most[kFigures * i + 2];
    figures[i]->bytes = most[kFigures * i + 3];
  }
}

// The trials of one bucket. All its decisions follow from agreed figures, so all ranks try the
// same.
class BucketTrials {
 public:
  BucketTrials(const TrialSetup& setup, const RegisteredBucket& bucket,
               std::span<const float> sample)
      : setup_(setup),
        sample_(sample),
        id_{.bucket = bucket.id(), .step = 0, .layout_hash = bucket.hash},
        link_(setup.make_exchange(id_).link),
        is_link_slow_(slow(link_)) {
    const std::size_t candidates = setup.options.candidates.size();
    trials_.times =
        static_cast<double>(bucket.elements() - bucket.raw) / static_cast<double>(sample.size());
    trials_.tried.resize(candidates);
    trials_.figures.resize(candidates);
  }

  // Tries the candidates in groups, and the ranks agree after each group: two that need hardly any
  // computing, two that are often chosen, and the others, which are one group where a latency is
  // long.
  Planner::Trials run() {
    const std::size_t count = trials_.tried.size();
    for (std::size_t first = 0; first < count;) {
      std::size_t size = first < kFirstGroups ? 2 : 1;
      if (first >= kFirstGroups && is_link_slow_) size = count - first;
      size = std::min(size, count - first);
      if (first > 0 && !setup_.options.try_all && !is_worthwhile(first, size)) break;
      try_group(first, size);
      first += size;
    }
    return std::move(trials_);
  }

 private:
  struct Entry {
    std::size_t candidate;
    std::unique_ptr<Trial> trial;
  };
  using Group = std::vector<Entry>;

  void try_group(std::size_t first, std::size_t size) {
    Group group;
    for (std::size_t i = first; i < first + size; ++i) {
      const Spec& spec = setup_.options.candidates[i];
      if (too_coarse_.contains(spec.name())) continue;
      group.push_back({i, std::make_unique<Trial>(setup_, spec, id_, sample_, trials_.times)});
      Trial& trial = *group.back().trial;
      trials_.tried[i] = true;
      run(group.back(), is_link_slow_ ? 1 : kRuns);
      if (i == 0) exact_.assign(trial.mean().begin(), trial.mean().end());
      trials_.figures[i].error = relative_error(trial.mean(), exact_);
      if (trials_.figures[i].error > setup_.options.max_error) too_coarse_.insert(spec.name());
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
    trials_.cost += std::exchange(runs_, 0) * seconds / static_cast<double>(figures.size());
  }

  // Lets candidates run again that are not the fastest only because of the time in which they
  // computed or waited for another rank: a machine may have been busy in that moment.
  void repeat_losers(Group& group) {
    for (;;) {
      Group again;
      for (Entry& one : group) {
        if (one.trial->runs() < kMostRuns && may_be_fastest(one.candidate)) {
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
    const Prediction bound = predicted(candidate);
    const double least = bound.wire + (1 + kLatenciesPerReduce) * link_.latency.count();
    const double gain = predicted(best).seconds - least;
    return gain >= Planner::kPossibleGain * predicted(best).seconds &&
           trials_.figures[candidate].seconds <= Planner::kStepsToGain * gain;
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

  // Returns whether the candidates that were not tried yet might gain more than their trials cost.
  [[nodiscard]] bool is_worthwhile(std::size_t first, std::size_t size) const {
    // The others compute for at least as long as bf16 and as dqsg, as far as these were tried.
    std::map<std::string, double> busy;
    double tried = 0;
    for (std::size_t i = 0; i < first; ++i) {
      if (!trials_.tried[i]) continue;
      ++tried;
      const std::string name = setup_.options.candidates[i].name();
      if (name != "bf16" && name != "dqsg") continue;
      const auto least = busy.try_emplace(name, predicted(i).busy()).first;
      least->second = std::min(least->second, predicted(i).busy());
    }
    double least_busy = 0;
    for (const auto& [name, least] : busy) least_busy = std::max(least_busy, least);
    const Prediction best = predicted(fastest());
    const double gain = best.seconds - best.latency - least_busy;
    // The last candidates are tried all or not at all.
    const std::size_t next = first < kFirstGroups ? size : trials_.tried.size() - first;
    return gain >= Planner::kPossibleGain * best.seconds &&
           static_cast<double>(next) * trials_.cost / tried <= Planner::kStepsToGain * gain;
  }

  const TrialSetup& setup_;
  std::span<const float> sample_;
  FrameId id_;
  Link link_;
  bool is_link_slow_;
  Planner::Trials trials_;
  std::uint64_t agreements_ = 0;
  int runs_ = 0;  // of candidates, since the last agreement
  std::vector<float> exact_;
  std::set<std::string> too_coarse_;
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

std::vector<float> take_sample(const BucketLayout& layout, std::span<const float> values,
                               std::size_t most) {
  std::size_t elements = 0;
  for_compressed(layout, [&](std::size_t, std::size_t count) { elements += count; });
  const double fraction = std::min(1.0, static_cast<double>(most) / static_cast<double>(elements));
  std::vector<float> sample;
  for_compressed(layout, [&](std::size_t first, std::size_t count) {
    const auto taken = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(count)));
    const auto run = values.subspan(first + (count - taken) / 2, taken);
    std::ranges::transform(run, std::back_inserter(sample), [](float value) {
      return std::clamp(value, -kLargestMagnitude, kLargestMagnitude);
    });
  });
  return sample;
}

Planner::Trials try_candidates(const TrialSetup& setup, const RegisteredBucket& bucket,
                               std::span<const float> sample) {
  return BucketTrials(setup, bucket, sample).run();
}

}  // namespace thinreduce
