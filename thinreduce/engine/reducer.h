// The synchronous core of a session: it chooses the method of a bucket, sends raw tensors
// uncompressed, and keeps the state between steps. Several threads may reduce or keep different
// buckets at the same time, each on a track of its own; all other calls need an idle session.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/engine/agreement.h"
#include "thinreduce/engine/registered_bucket.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/engine/state_file.h"
#include "thinreduce/engine/trials.h"
#include "thinreduce/error.h"
#include "thinreduce/method/spec.h"
#include "thinreduce/plan/planner.h"

namespace thinreduce {

// One submitted bucket in the session's queue.
struct Job {
  std::shared_ptr<const RegisteredBucket> bucket;
  std::span<float> values;
  std::span<const float> second_moment;
  std::optional<Refusal> refusal;  // why this rank does not reduce it
  Moment submitted;
  double ready = 0;  // seconds since the step's first bucket was submitted, for a planner
  std::promise<Report> done;
};

// Thrown on all ranks when they can't reduce a bucket together. The state was not changed.
struct Disagreement {
  Error error;
};

class Reducer {
 public:
  Reducer(const Transport& transport, const SessionOptions& options, WorkerPool& pool)
      : transport_(transport), options_(options), pool_(pool) {
    spare_.reserve(kMaxTracks);  // giving buffers back must not allocate
  }

  // Sets what the ranks have agreed on about the network; see Exchange::link.
  void set_link(const Link& link) { link_ = link; }
  // Sets the planner of buckets with the spec `auto`.
  void set_planner(Planner* planner) { planner_ = planner; }

  // Opens a step of a session with a planner, before its first bucket is reduced and while no other
  // is in flight. May try the candidates over the track and change the methods of buckets. Returns
  // the seconds that this took. Throws Disagreement if another rank opens no step, or Error.
  double open_step(Transport& track);

  // Compares the job with those of the other ranks, then reduces it. Throws Disagreement, or Error
  // when the exchange failed: the gradient is then kept, or the job's values are as before if the
  // spec keeps no residual.
  Report reduce(Job& job, Transport& track);
  // Keeps the gradient of a job that is not reduced because the session is over: it is part of the
  // saved state and is added to a later step. Does nothing where a spec keeps no residual: the
  // gradient is still the caller's.
  void keep(const Job& job);

  // Starts a step that undo_step() can take back: copies each bucket's state before its next
  // reduce.
  void begin_step();
  // Restores the state of every bucket that was reduced since begin_step().
  void undo_step();
  // Drops a bucket with all its state.
  void forget(std::uint32_t id);

  // Returns whether no bucket was submitted or loaded yet.
  [[nodiscard]] bool is_new() const { return slots_.empty() && loaded_.empty(); }
  [[nodiscard]] SessionState save();
  // Throws Error{bad_state}; nothing is changed then.
  void load(const SessionState& state);

 private:
  // The state of one bucket between steps.
  struct Slot {
    std::shared_ptr<const RegisteredBucket> given;  // as it was submitted
    // The same; with the spec `auto`, the variant of it that is in use, and its number.
    std::shared_ptr<const RegisteredBucket> bucket;
    std::size_t variant = 0;
    StepFigures figures;     // of the last step, for the planner
    Sample sample;           // of the last step that kept one
    bool confirmed = false;  // all ranks have agreed on the layout once
    std::uint64_t step = 0;
    std::uint64_t last_result = 0;   // hash of the last mean, 0 unless the ranks compare it
    std::unique_ptr<Method> method;  // null when the bucket needs none
    std::vector<float> raw_values;   // values of the raw tensors, side by side
    BucketState before;              // the state before the step that began last
    std::uint64_t copied_in = 0;     // that step's number; `before` of earlier ones is out of date
    // This rank's gradient of the current step that travels uncompressed, if `unsent` may need it.
    std::vector<float> raw_gradient;
    // Gradient of failed steps that the method did not take in, one float per element, or empty. If
    // the slot keeps gradient, there is always room for it, which is only address space until it is
    // used.
    std::vector<float> unsent;
    std::uint64_t unsent_since = 0;  // the step that must empty it to be undone, or 0
  };

  // Sends the refusal to all ranks and waits for their statements. Throws like reduce().
  [[noreturn]] void refuse(const Job& job, Transport& transport) const;
  // Returns whether the gradient of a failed step is kept here and not given back to the caller. A
  // caller can't know which method `auto` has chosen, so it always keeps.
  [[nodiscard]] static bool keeps(const Slot& slot) {
    return slot.bucket->keeps || !slot.given->variants.empty();
  }
  // Lends memory to one exchange.
  struct Lent {
    SpareBuffers buffers;
    OriginalMemory original;
  };
  class Spare {
   public:
    explicit Spare(Reducer& reducer);
    ~Spare();
    Spare(const Spare&) = delete;
    Spare& operator=(const Spare&) = delete;

    Lent lent;

   private:
    Reducer& reducer_;
  };
  // Returns the bucket's slot; makes it for a new bucket.
  [[nodiscard]] Slot& slot_of(const Job& job);
  [[nodiscard]] Statement statement_of(const Slot& slot, const Job& job, Workers workers) const;
  // Returns the outliers that the guard has found. Throws Disagreement, or Error when messages
  // failed: the gradient is then kept.
  [[nodiscard]] std::map<int, double> agree_on(Slot& slot, const Job& job, Transport& transport);
  [[nodiscard]] Slot make_slot(std::shared_ptr<const RegisteredBucket> given) const;
  // Sets the bucket and the method of a slot.
  void set_variant(Slot& slot, std::size_t variant) const;
  // Gives the bucket another method. The old one's residual is added to the next gradient.
  void change_variant(Slot& slot, std::size_t variant);
  // Returns the exchange of a bucket on a track.
  [[nodiscard]] Exchange make_exchange(Transport& track, const FrameId& id, SpareBuffers& spare);
  // Keeps a sample of an `auto` bucket's gradient, for trials before the next step.
  void keep_sample(Slot& slot, const Job& job) const;
  // Adds the exact mean to the sample, if the step was fp32.
  void keep_mean_of_sample(Slot& slot, const Job& job) const;
  // Checks that all ranks are about to try the same, which also lets them start together.
  void begin_trials(Transport& track);
  void try_candidates(Transport& track);
  // Gives the buckets the methods of a new plan.
  void follow(const Planner::Choices& choices);
  [[nodiscard]] bool compresses(const Slot& slot) const {
    return slot.bucket->compressible && slot.step >= options_.warmup_steps;
  }
  [[nodiscard]] std::uint16_t method_id(const Slot& slot) const;
  // Returns whether NaN and Inf are looked for during the sum and not before.
  [[nodiscard]] bool checks_late(const Slot& slot, const Job& job) const;
  // Returns the figures of a step, without its times from submit on.
  [[nodiscard]] static Report report_of(const Slot& slot, const Job& job,
                                        Exchange& exchange) noexcept;
  // Throws as reduce() does.
  void reduce_slot(Slot& slot, const Job& job, Exchange& exchange, Original& original);
  void reduce_compressed(Slot& slot, const Job& job, Exchange& exchange);
  void reduce_uncompressed(Slot& slot, const Job& job, Exchange& exchange);
  [[nodiscard]] RankInWorld place() const { return {transport_.rank(), transport_.size()}; }
  void copy_for_undo(Slot& slot);
  // Keeps the gradient of a job that was not reduced, if it is finite.
  static void add_unsent(Slot& slot, const Job& job);
  // Adds gradients of two steps. A sum beyond the largest float is clamped to it.
  static void add_finite(std::span<float> to, std::span<const float> values);
  // Shows the whole state of a bucket to the archive.
  static void show_state(Slot& slot, Archive& archive);

  const Transport& transport_;
  const SessionOptions& options_;
  WorkerPool& pool_;
  std::mutex mutex_;  // of the maps and `spare_`; a slot is used by the thread in work on it
  std::map<std::uint32_t, Slot> slots_;  // by bucket id
  // State of buckets that were loaded and not submitted yet, by bucket id.
  std::map<std::uint32_t, BucketState> loaded_;
  std::uint64_t begun_ = 0;  // number of steps that began; 0: nothing is copied
  std::vector<Lent> spare_;  // by exchanges; as many as were ever in flight at once
  Link link_ = kLocalNetwork;
  // The link and the planner's conditions when the step began, for undo_step().
  Link link_before_ = kLocalNetwork;
  Conditions conditions_before_;
  Planner* planner_ = nullptr;
  bool keeping_samples_ = false;                  // the current step does
  bool has_tried_ = false;                        // candidates were tried before
  std::optional<Clock::time_point> step_opened_;  // with a planner
};

}  // namespace thinreduce
