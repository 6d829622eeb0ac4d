// The planner decides when the candidates are tried and which of them each bucket gets.
//
// It does not communicate. All it decides by are figures on which the ranks have agreed, in the
// same order on every rank, so all ranks decide the same at the same step.
//
// A step opens with its first bucket. The first steps travel as fp32. Then a step keeps samples of
// its gradients, and before the next one the candidates are tried on them. From then on the planner
// compares the times of steps with its prediction. Where the difference changes by more than
// kTolerance, it finds the link that explains the times, and plans for that one. Where predictions
// are off otherwise, the candidates are tried again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "thinreduce/methods/auto.h"
#include "thinreduce/plan/bucket_times.h"
#include "thinreduce/plan/cost.h"
#include "thinreduce/plan/plan.h"

namespace thinreduce {

class Planner {
 public:
  // `world` is the number of ranks.
  Planner(AutoOptions options, int world) : options_(std::move(options)), world_(world) {}

  // Steps at the start that travel as fp32 before samples are taken.
  static constexpr std::uint64_t kFirstSteps = 1;
  static constexpr double kTolerance = 0.15;
  // A change that has trials at once; a smaller one waits until they take kTrialFraction.
  static constexpr double kLargeChange = 0.4;
  // A plan must be faster than a more exact one by this fraction, and than the current one.
  static constexpr double kWorthwhile = 0.01;
  static constexpr double kHysteresis = 0.05;
  // Candidates are tried where the bytes take at least this part of an fp32 step, and where this
  // many steps can make up for the trials.
  static constexpr double kPossibleGain = 0.03;
  static constexpr double kStepsToGain = 10;
  // Steps whose median is compared with a prediction.
  static constexpr std::size_t kWindow = 5;
  // Steps between trials: at least, and at most when they change nothing.
  static constexpr std::uint64_t kMinInterval = 10;
  static constexpr std::uint64_t kMaxInterval = 320;
  // Trials must not take more than this part of the time, unless the link has changed.
  static constexpr double kTrialFraction = 0.005;
  // Steps for which fp32 stays after a plan was slower, the first time; then twice as many.
  static constexpr std::uint64_t kFirstHold = 40;
  // A bucket that was not reduced in this many steps is left out.
  static constexpr std::uint64_t kForgotten = 5;

  [[nodiscard]] const AutoOptions& options() const { return options_; }

  // Further work of the step that opens, beside reducing its buckets. With change_plan, choices()
  // and link() are new.
  enum class Task { none, keep_samples, try_candidates, change_plan };
  [[nodiscard]] Task open_step();

  // Takes note of a bucket's last step. `elements` are those that a method may compress. May be
  // called from several threads.
  void note(std::uint32_t bucket, std::uint64_t elements, const BucketTimes& times);
  // Take note of times on this rank, for plan() alone: seconds between the last two steps'
  // openings, and of work beside reducing buckets.
  void note_period(double seconds);
  void note_planning(double seconds);

  // Sets the link of the trials that come now.
  void set_link(const Link& link);
  // The conditions that the plan follows: a step that is undone restores those before it.
  [[nodiscard]] Conditions conditions() const;
  void set_conditions(const Conditions& conditions);
  // Returns whether any bucket is so large that trials may be worth their cost on the link, however
  // fast the processor is.
  [[nodiscard]] bool link_may_gain(const std::map<std::uint32_t, std::uint64_t>& elements) const;
  // Returns whether compressing a bucket, of which a method may compress `elements` elements, might
  // shorten a step at all. If not, its candidates need no trial.
  [[nodiscard]] bool may_gain(std::uint32_t bucket, std::uint64_t elements);
  // Returns the seconds of computing in the bucket's last step, if that was fp32; else 0.
  [[nodiscard]] double busy_with_fp32(std::uint32_t bucket) const;
  // Returns whether the trials that come now include candidates that are seldom chosen: the session
  // has gone on for long enough, or a bucket has one of them.
  [[nodiscard]] bool tries_others() const;

  // The trials of one bucket, one per candidate; those that were not tried have no figures.
  struct Trials {
    double times = 1;      // how many times larger the bucket is than its sample
    double cost = 0;       // seconds of all runs
    double left_out = 0;   // seconds of trials that may be useful, and were too long for now
    bool assumed = false;  // the figures follow from a step with fp32, without trials
    std::vector<bool> tried;
    std::vector<TrialFigures> figures;
    Link link{};  // on which they were tried; decide() sets it
  };
  using Choices = std::map<std::uint32_t, std::size_t>;
  // Plans anew, with the trials of all buckets that had a sample and may gain. Returns the
  // candidate of every bucket.
  [[nodiscard]] const Choices& decide(const std::map<std::uint32_t, Trials>& trials,
                                      const Link& link);
  // Return the plan in force, for the thread that opens steps.
  [[nodiscard]] const Choices& choices() const { return choices_; }
  [[nodiscard]] const Link& link() const { return now_.link; }
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
    std::uint64_t steps = 0;    // with a figure for it
    BucketTimes last;           // the last step's
    bool noted = false;         // the figures above are there
    std::uint64_t seen_at = 0;  // the step in which it was noted last
    std::size_t choice = 0;
    Trials trials;
    std::vector<Prediction> predictions;  // one per candidate, or none before the first plan
  };
  // A whole step.
  struct Observed {
    double finish = 0;   // from the first bucket to the last mean, once all ranks have begun
    double busy = 0;     // encoding and decoding of all buckets
    double latency = 0;  // of a message
  };
  // Times of steps over their predictions, and what else tells why they change.
  struct Seen {
    double ratio = 0;
    double busy = 0;
    double latency = 0;
  };

  // Returns whether the bucket was reduced lately.
  [[nodiscard]] bool is_active(const Known& bucket) const;
  [[nodiscard]] bool compresses() const;
  [[nodiscard]] bool is_allowed(const Known& bucket, std::size_t candidate) const;
  // Returns whether anything but fp32 was tried.
  [[nodiscard]] static bool was_tried(const Known& bucket);
  [[nodiscard]] double uncompressed_bytes(std::uint64_t elements) const;
  [[nodiscard]] bool gains(const Known& bucket) const;
  [[nodiscard]] bool link_gains(std::uint64_t elements) const;
  // Returns whether a method that computes for as long as the ladder may be faster than the halved
  // one.
  [[nodiscard]] bool may_beat_halved(const Known& bucket) const;

  // Returns when a step is done: as predicted; with the ready times of the last step; under other
  // conditions.
  [[nodiscard]] double finish_with(const Choices& choices) const;
  [[nodiscard]] double finish_of_last(const Choices& choices) const;
  [[nodiscard]] double finish_under(const Conditions& conditions, const Choices& choices) const;
  template <typename Ready, typename Cost>
  [[nodiscard]] double finish(const Ready& ready, const Cost& cost) const;
  // Returns the seconds until the step's last bucket is submitted.
  [[nodiscard]] double last_ready() const;

  [[nodiscard]] Choices current() const;
  [[nodiscard]] Choices all_fp32() const;
  [[nodiscard]] Choices fastest() const;
  // Returns the choices with every bucket as exact as it can be at hardly more time.
  [[nodiscard]] Choices more_exact(Choices choices) const;
  // Returns the best choices, or the current ones if those are nearly as good.
  [[nodiscard]] Choices best() const;

  [[nodiscard]] bool has_new_bucket() const;
  // Returns whether the session has gone on for long enough for the trials that were left out.
  [[nodiscard]] bool others_are_due() const { return others_at_ > 0 && opened_ >= others_at_; }
  // Notes the seconds of trials, and when the next ones may come.
  void count_cost(double tried, double left_out);
  // Returns the times of the last step; nothing if they are incomplete.
  [[nodiscard]] std::optional<Observed> observe() const;
  void watch();
  // Takes note of a step that sent fp32 before the first plan.
  void note_uncompressed(double seconds);
  // Learns from the first steps of a plan how well it is predicted, and whether fp32 was faster.
  void learn_usual_ratio();
  // Returns whether trials are due because predictions are off.
  [[nodiscard]] bool is_off();
  // Returns whether a step has changed by so much that a few steps can make up for trials.
  [[nodiscard]] bool is_large_change(double ratio) const;
  // Goes back to fp32 if the plan was measured to be slower. Returns whether it did.
  [[nodiscard]] bool fall_back();
  // Returns to the plan before that if fp32 was measured to be no faster. Returns whether it did.
  [[nodiscard]] bool come_back();
  // Chooses anew by the last step before the plan: buckets of steps before that may have been ready
  // late. Returns whether the plan has changed.
  [[nodiscard]] bool reconsider();
  // Returns whether times that have changed may have consequences in this step.
  [[nodiscard]] bool may_react() const;
  // Takes note that they have. A link that changes all the time is followed less and less often.
  void react();
  // Plans for the link that explains the times of the last steps, if they have changed. Returns
  // whether it did.
  [[nodiscard]] bool follow_link();
  [[nodiscard]] std::optional<Conditions> explain_times(const Seen& seen) const;
  // Predicts the costs of all candidates under the conditions of now.
  void predict_all();
  // Gives a bucket without trials the figures of its last step.
  void take_step_as_trial(Known& bucket) const;
  void adopt(const Choices& choices);
  [[nodiscard]] std::string explain(const Plan& plan) const;
  [[nodiscard]] std::string explain(const Known& bucket, const PlanBucket& shown) const;
  [[nodiscard]] PlanBucket show(std::uint32_t id, const Known& bucket) const;

  AutoOptions options_;
  int world_;
  mutable std::mutex mutex_;
  std::map<std::uint32_t, Known> buckets_;
  Conditions now_;
  std::uint64_t opened_ = 0;    // steps
  std::uint64_t tried_at_ = 0;  // the step before which candidates were tried last
  std::uint64_t interval_ = kMinInterval;
  std::uint64_t affordable_ = kMinInterval;  // the interval at which trials take kTrialFraction
  double cost_ = 0;                          // seconds of the last trials, and of a probe
  std::uint64_t others_at_ = 0;              // step for the trials that were left out; 0: none
  bool others_tried_ = false;
  std::uint64_t hold_ = kFirstHold;
  std::uint64_t hold_until_ = 0;
  bool frozen_ = false;
  bool sampling_ = false;  // the current step keeps samples
  bool planned_ = false;
  bool has_last_fp32_ = false;    // the figures of the last step before the plan have come in
  bool began_with_fp32_ = false;  // when the first plan was made
  std::uint64_t settled_at_ = 0;  // the first step whose figures belong to the current plan
  std::deque<double> ratios_;     // measured over predicted, of the last steps of this plan
  double finish_ = 0;             // measured, of the last step
  double usual_ratio_ = 0;        // 0: not known yet
  double previous_ratio_ = 0;     // the usual one of the plan before
  double uncompressed_ = 0;       // measured, of the fastest step before the first plan
  double fp32_ratio_ = 0;         // that over the first prediction for fp32; 0: not known
  bool slower_ = false;           // the plan was measured to be slower than fp32
  // The plan that was measured to be slower than fp32, until fp32 has been measured again.
  struct Left {
    Choices choices;
    double seconds = 0;      // of its fastest step
    bool is_better = false;  // fp32 was measured to be no faster
  };
  std::optional<Left> left_;
  std::deque<Seen> seen_;         // the last steps of this plan
  std::optional<Seen> usual_;     // of the first ones
  std::uint64_t reacted_at_ = 0;  // to a change, by a new plan or by trials
  std::uint64_t reaction_interval_ = kMinInterval;
  std::uint64_t trials_ = 0;
  std::uint64_t changes_ = 0;
  std::uint64_t followed_ = 0;
  std::deque<double> periods_;  // of the last steps, on this rank
  double planning_ = 0;         // seconds on this rank
  double elapsed_ = 0;          // the same
  Choices choices_;
};

}  // namespace thinreduce
