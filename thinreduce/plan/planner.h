// The planner decides when the candidates are tried and which of them each bucket gets.
//
// It does not communicate. All it knows are figures on which the ranks have agreed, in the same
// order on every rank, so all ranks decide the same at the same step.
//
// A step opens with its first bucket. The first steps travel as fp32. Then a step keeps samples of
// its gradients, and before the next one the candidates are tried on them. From then on the planner
// compares the times of steps with its prediction. Where that is off by more than kTolerance, or
// where the difference changes by that much later, the candidates are tried again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "thinreduce/methods/auto.h"
#include "thinreduce/plan/cost.h"
#include "thinreduce/plan/plan.h"

namespace thinreduce {

class Planner {
 public:
  explicit Planner(AutoOptions options) : options_(std::move(options)) {}

  // Steps at the start that travel as fp32 before samples are taken; the first is slower than
  // others.
  static constexpr std::uint64_t kFirstSteps = 2;
  static constexpr double kTolerance = 0.15;
  // A plan must be faster than a more exact one by this fraction, and than the current one.
  static constexpr double kWorthwhile = 0.01;
  static constexpr double kHysteresis = 0.05;
  // Steps whose median is compared with a prediction.
  static constexpr std::size_t kWindow = 5;
  // Steps between trials: at least, and at most when they change nothing.
  static constexpr std::uint64_t kLeastInterval = 10;
  static constexpr std::uint64_t kMostInterval = 320;
  // Trials must not take more than this part of the time, unless the link has changed.
  static constexpr double kTrialShare = 0.005;
  // Steps for which fp32 stays after a plan was slower, the first time; then twice as many.
  static constexpr std::uint64_t kFirstHold = 40;
  // A bucket that was not reduced in this many steps is left out.
  static constexpr std::uint64_t kForgotten = 5;

  [[nodiscard]] const AutoOptions& options() const { return options_; }

  // Further work of the step that opens, beside reducing its buckets.
  enum class Task { none, keep_samples, try_candidates };
  [[nodiscard]] Task open_step();

  // Takes note of a bucket's last step: when it was submitted after the step's first bucket, and
  // how long it took from then. `elements` are those that a method may compress. May be called from
  // several threads.
  void note(std::uint32_t bucket, std::uint64_t elements, double ready, double seconds);

  // The trials of one bucket, one per candidate; those that were not tried have no figures.
  struct Trials {
    double times = 1;  // how many times larger the bucket is than its sample
    double runs = 1;   // of each candidate
    std::vector<bool> tried;
    std::vector<TrialFigures> figures;
  };
  // Plans anew, with the trials of all buckets that had a sample. Returns the candidate of every
  // bucket.
  [[nodiscard]] const std::map<std::uint32_t, std::size_t>& decide(
      const std::map<std::uint32_t, Trials>& trials, const Link& link);
  // Keeps the plan as it is for good. For ranks that no longer submit the same buckets: they would
  // not open the same steps.
  void freeze();
  // Tells which candidate a bucket has: it may have been loaded from a state.
  void set_choice(std::uint32_t bucket, std::size_t candidate);

  void forget(std::uint32_t bucket);

  // Returns the number of steps that opened.
  [[nodiscard]] std::uint64_t opened() const;
  [[nodiscard]] Plan plan() const;

 private:
  struct Known {
    std::uint64_t elements = 0;
    double ready = 0;           // smoothed over steps
    double last_ready = 0;      // the last step's
    double seconds = 0;         // the same
    bool noted = false;         // the figures above are there
    std::uint64_t seen_at = 0;  // the step in which it was noted last
    std::size_t choice = 0;
    Trials trials;
    std::vector<Prediction> predictions;
  };
  using Choices = std::map<std::uint32_t, std::size_t>;

  // Returns whether the bucket was reduced lately.
  [[nodiscard]] bool is_active(const Known& bucket) const;
  [[nodiscard]] bool compresses() const;
  [[nodiscard]] bool is_allowed(const Known& bucket, std::size_t candidate) const;
  [[nodiscard]] double finish_with(const Choices& choices, double Known::*ready) const;
  [[nodiscard]] double finish_with(const Choices& choices) const {
    return finish_with(choices, &Known::ready);
  }
  [[nodiscard]] Choices current() const;
  [[nodiscard]] Choices all_fp32() const;
  [[nodiscard]] Choices fastest() const;
  // Returns the choices with every bucket as exact as it can be at hardly more time.
  [[nodiscard]] Choices more_exact(Choices choices) const;
  [[nodiscard]] bool has_new_bucket() const;
  void watch();
  // Returns whether trials are due because predictions are off.
  [[nodiscard]] bool is_off();
  void adopt(const Choices& choices, bool fell_back);
  [[nodiscard]] std::string explain(double uncompressed, double predicted) const;

  AutoOptions options_;
  mutable std::mutex mutex_;
  std::map<std::uint32_t, Known> buckets_;
  Link link_{};
  std::uint64_t opened_ = 0;    // steps
  std::uint64_t tried_at_ = 0;  // the step before which candidates were tried last
  std::uint64_t interval_ = kLeastInterval;
  std::uint64_t affordable_ = kLeastInterval;  // the interval at which trials take kTrialShare
  std::uint64_t hold_ = kFirstHold;
  std::uint64_t hold_until_ = 0;
  bool frozen_ = false;
  bool sampling_ = false;  // the current step keeps samples
  bool planned_ = false;
  std::uint64_t settled_at_ = 0;  // the first step whose figures belong to the current plan
  std::deque<double> ratios_;     // measured over predicted, of the last steps of this plan
  double finish_ = 0;             // measured, of the last step
  double usual_ratio_ = 0;        // 0: not known yet
  double previous_ratio_ = 0;     // the usual one of the plan before
  double uncompressed_ = 0;       // measured, of the last step before the first plan
  double fp32_ratio_ = 0;         // that over the first prediction for fp32; 0: not known
  bool slower_ = false;           // the plan was measured to be slower than fp32
  std::uint64_t trials_ = 0;
  std::uint64_t changes_ = 0;
  Choices choices_;  // the last that decide() returned
};

}  // namespace thinreduce
