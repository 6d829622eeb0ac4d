// The link, measured from the times of real steps between trials.
//
// The statement before every bucket carries four times of the bucket's last step: when it was
// ready, how long it took, how much of that was encoding and decoding, and how much was the wait
// for the other ranks' statements. The latency follows from the waits, the speed of the processor
// from the time of encoding and decoding. The rate of the link explains the rest of a change in the
// time of a step.
#include <algorithm>
#include <cmath>

#include "thinreduce/plan/planner.h"
#include "thinreduce/plan/steps_in_common.h"

namespace thinreduce {
namespace {

// Bounds of a rate, in bytes per second.
constexpr double kLowestRate = 1e3;
constexpr double kHighestRate = 1e12;
// A rate counts as high enough if an unlimited one would not be faster by more than this.
constexpr double kFastEnough = 0.05;
// Seconds by which latencies vary without a change of the link.
constexpr double kLatencyNoise = 50e-6;

bool differs(double value, double usual) {
  return std::abs(value - usual) > Planner::kTolerance * usual;
}

}  // namespace

bool Planner::may_react() const {
  return reacted_at_ == 0 || opened_ >= reacted_at_ + reaction_interval_;
}

void Planner::react() {
  const bool lately = reacted_at_ > 0 && opened_ < reacted_at_ + 4 * reaction_interval_;
  reaction_interval_ = lately ? std::min(2 * reaction_interval_, kMaxInterval) : kMinInterval;
  reacted_at_ = opened_;
}

bool Planner::follow_link() {
  if (seen_.size() < kWindow) return false;
  const auto typical = [&](double Seen::*field) {
    std::deque<double> values;
    for (const Seen& one : seen_) values.push_back(one.*field);
    return median(values);
  };
  const Seen seen{.ratio = typical(&Seen::ratio),
                  .busy = typical(&Seen::busy),
                  .latency = typical(&Seen::latency)};
  if (!usual_) {
    usual_ = seen;
    return false;
  }
  if (!all_differ(ratios_, usual_->ratio, kTolerance) || !may_react()) return false;
  const std::optional<Conditions> found = explain_times(seen);
  if (!found) return false;
  react();
  ++followed_;
  now_ = *found;
  predict_all();
  adopt(opened_ < hold_until_ ? current() : best());
  return true;
}

std::optional<Conditions> Planner::explain_times(const Seen& seen) const {
  Conditions found = now_;
  const double longer = seen.latency - usual_->latency;
  if (std::abs(longer) > kLatencyNoise) {
    found.link.latency = std::max(Seconds{0}, found.link.latency + Seconds{longer});
  }
  if (usual_->busy > 0 && seen.busy > 0) found.slowdown *= seen.busy / usual_->busy;
  const Choices choices = current();
  const double wanted = seen.ratio / usual_->ratio * finish_with(choices);
  const auto finish_at = [&](double rate) {
    Conditions tried = found;
    tried.link.bytes_per_second = rate;
    return finish_under(tried, choices);
  };
  if (differs(finish_at(found.link.bytes_per_second), wanted)) {
    // The square root makes this a bisection of the exponent, with the same bits on every machine.
    const double target = std::max(wanted, (1 + kFastEnough) * finish_at(kHighestRate));
    double low = kLowestRate;
    double high = kHighestRate;
    for (int i = 0; i < 50; ++i) {
      const double rate = std::sqrt(low * high);
      (finish_at(rate) > target ? low : high) = rate;
    }
    found.link.bytes_per_second = high;
    if (differs(finish_at(high), wanted)) return {};  // no link explains it
  }
  const bool same = !differs(found.link.bytes_per_second, now_.link.bytes_per_second) &&
                    !differs(found.link.latency.count(), now_.link.latency.count()) &&
                    !differs(found.slowdown, now_.slowdown);
  if (same) return {};
  return found;
}

}  // namespace thinreduce
