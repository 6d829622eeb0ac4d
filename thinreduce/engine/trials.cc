#include "thinreduce/engine/trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <string>

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
// How often a candidate is tried where computing counts.
constexpr int kRuns = 4;

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

  // Returns the figures, and the mean of the first step. Where computing counts beside the link,
  // the fastest of some further runs counts: the first one allocates, and others may be disturbed.
  TrialFigures run(std::vector<float>& mean) {
    const TrialFigures first = run_once();
    mean = mean_;
    if (is_link_slow_) return first;
    TrialFigures best = run_once();
    for (int run = 2; run < kRuns; ++run) {
      const TrialFigures other = run_once();
      if (other.seconds < best.seconds) best = other;
    }
    return best;
  }

  [[nodiscard]] int runs() const { return is_link_slow_ ? 1 : kRuns; }

 private:
  TrialFigures run_once() {
    Exchange exchange = setup_.make_exchange(id_);
    exchange.stands_for = times_;
    is_link_slow_ = slow(exchange.link);
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
    figures.busy = exchange.stages.encode + exchange.stages.decode;
    figures.bytes = static_cast<double>(transport.total_traffic().bytes_sent - before.bytes_sent);
    ++id_.step;
    return figures;
  }

  const TrialSetup& setup_;
  const Spec& spec_;
  FrameId id_;
  std::span<const float> sample_;
  double times_;
  bool is_link_slow_ = false;
  std::unique_ptr<Method> method_;
  std::vector<float> mean_;
};

// Replaces each rank's figures by the largest of any rank.
void agree_on_figures(Exchange& exchange, std::vector<TrialFigures>& figures) {
  std::vector<double> own;
  for (const TrialFigures& one : figures) {
    own.insert(own.end(), {one.seconds, one.busy, one.bytes});
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
    figures[i].seconds = most[3 * i];
    figures[i].busy = most[3 * i + 1];
    figures[i].bytes = most[3 * i + 2];
  }
}

}  // namespace

std::size_t sample_size(const Link& link, int world) {
  if (!(link.bytes_per_second > 0)) return kLargestSample;
  const double least = std::min<double>(
      kLargestSample, double{kSmallestSample} * std::max(1.0, static_cast<double>(world) / 4));
  const double floats = kSampleSeconds * link.bytes_per_second / sizeof(float);
  return static_cast<std::size_t>(std::clamp(floats, least, double{kLargestSample}));
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
  const auto& candidates = setup.options.candidates;
  Planner::Trials trials;
  trials.times =
      static_cast<double>(bucket.elements() - bucket.raw) / static_cast<double>(sample.size());
  trials.tried.resize(candidates.size());
  trials.figures.resize(candidates.size());
  FrameId id{.bucket = bucket.id(), .step = 0, .layout_hash = bucket.hash};
  std::vector<float> exact;
  std::set<std::string> too_coarse;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Spec& spec = candidates[i];
    if (too_coarse.contains(spec.name())) continue;
    std::vector<float> mean;
    Trial trial(setup, spec, id, sample, trials.times);
    trials.figures[i] = trial.run(mean);
    trials.runs = trial.runs();
    trials.tried[i] = true;
    if (i == 0) exact = mean;
    trials.figures[i].error = relative_error(mean, exact);
    if (trials.figures[i].error > setup.options.max_error) too_coarse.insert(spec.name());
  }
  Exchange exchange = setup.make_exchange(id);
  agree_on_figures(exchange, trials.figures);
  return trials;
}

}  // namespace thinreduce
