// The part of the reducer that follows a planner: samples, trials, and buckets that change their
// method.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "thinreduce/engine/probe.h"
#include "thinreduce/engine/reducer.h"
#include "thinreduce/engine/trials.h"
#include "thinreduce/method/bucket.h"
#include "thinreduce/method/registry.h"

namespace thinreduce {

double Reducer::open_step(Transport& track) {
  const auto started = track.now();
  if (step_opened_) planner_->note_period(Seconds(started - *step_opened_).count());
  step_opened_ = started;
  const Planner::Task task = planner_->open_step();
  keeping_samples_ = task == Planner::Task::keep_samples;
  if (task == Planner::Task::try_candidates) try_candidates(track);
  if (task == Planner::Task::change_plan) follow(planner_->choices());
  const double seconds = Seconds(track.now() - started).count();
  planner_->note_planning(seconds);
  return seconds;
}

void Reducer::follow(const Planner::Choices& choices) {
  link_ = planner_->link();
  for (const auto& [id, variant] : choices) {
    if (const auto found = slots_.find(id); found != slots_.end()) {
      change_variant(found->second, variant);
    }
  }
}

void Reducer::keep_sample(Slot& slot, const Job& job) const {
  const RegisteredBucket& given = *slot.given;
  const bool compresses = given.raw < given.elements() && slot.step >= options_.warmup_steps;
  if (given.variants.empty() || !compresses) return;
  const std::size_t size = sample_size(link_, transport_.size(), given.elements() - given.raw);
  Sample sample;
  take_sample(given.compressed, job.values, size, sample.values);
  // The mean is written when the step has succeeded, and must not fail for lack of memory then.
  sample.mean.reserve(sample.values.size());
  slot.sample = std::move(sample);
}

void Reducer::keep_mean_of_sample(Slot& slot, const Job& job) const {
  // All ranks must decide the same, so an unsent gradient of one of them counts as an error.
  if (slot.sample.values.empty() || slot.variant != 0) return;
  const RegisteredBucket& given = *slot.given;
  const std::size_t size = sample_size(link_, transport_.size(), given.elements() - given.raw);
  take_sample(given.compressed, job.values, size, slot.sample.mean);
}

void Reducer::begin_trials(Transport& track) {
  Statement statement;
  statement.id.method = auto_info().wire_id;
  statement.id.bucket = kNoBucket;
  statement.id.step = planner_->opened();
  for (const auto& [id, slot] : slots_) {
    if (!slot.sample.values.empty()) statement.id.elements += id + slot.sample.values.size();
  }
  // The largest bucket's last step: its first one, of which the planner knows, allocated memory.
  const auto size = [](const auto& entry) {
    return entry.second.sample.values.empty() ? 0 : entry.second.given->elements();
  };
  const auto largest = std::ranges::max_element(slots_, {}, size);
  const bool has_sample = largest != slots_.end() && size(*largest) > 0;
  if (has_sample) statement.figures = largest->second.figures;
  try {
    const BucketTimes last = agree(track, statement, options_.limits(), {}).times;
    if (has_sample && last.seconds > 0) {  // the times of other ranks may be there without own ones
      const RegisteredBucket& bucket = *largest->second.given;
      planner_->note(largest->first, bucket.elements() - bucket.raw, last);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::mismatch && error.code() != ErrorCode::bad_input) throw;
    planner_->freeze();
    throw Disagreement{Error(
        error.code(),
        fmt::format(
            "this rank is about to try methods for 'auto', another one is not; all ranks must "
            "submit the same buckets in the same order: {}",
            error.what()))};
  }
}

void Reducer::try_candidates(Transport& track) {
  std::map<std::uint32_t, std::uint64_t> elements;  // that a method may compress, by bucket
  for (const auto& [id, slot] : slots_) {
    if (!slot.sample.values.empty()) elements[id] = slot.given->elements() - slot.given->raw;
  }
  // The first trials follow the probe at the start. Where they can't be worth a message, they do
  // not send any.
  if (!has_tried_) planner_->set_link(link_);
  if (!has_tried_ && !planner_->link_may_gain(elements)) {
    for (const auto& [id, count] : elements) slots_.at(id).sample = {};
    has_tried_ = true;
    return follow(planner_->decide({}, link_));
  }
  begin_trials(track);
  if (has_tried_) link_ = agree_on_link(track, options_.limits(), options_.link);
  has_tried_ = true;
  planner_->set_link(link_);
  Spare spare(*this);
  const TrialSetup setup{
      .options = planner_->options(),
      .seed = options_.seed,
      .make_exchange =
          [&](const FrameId& id) { return make_exchange(track, id, spare.lent.buffers); },
      .try_others = planner_->tries_others()};
  std::map<std::uint32_t, Planner::Trials> trials;
  for (const auto& [id, count] : elements) {
    Slot& slot = slots_.at(id);
    Sample sample = std::exchange(slot.sample, {});
    sample.busy = planner_->busy_with_fp32(id);
    if (!planner_->may_gain(id, count)) continue;
    trials[id] = thinreduce::try_candidates(setup, *slot.given, sample);
  }
  follow(planner_->decide(trials, link_));
}

void Reducer::change_variant(Slot& slot, std::size_t variant) {
  if (slot.variant == variant || slot.given->variants.empty()) return;
  copy_for_undo(slot);  // another rank may not come as far as this in the step
  std::vector<float> unsent = slot.unsent;
  if (slot.method) {
    std::vector<float> owed(slot.bucket->elements());
    slot.method->add_residual(owed);
    // A method may leave anything outside the tensors that it compresses.
    for_uncompressed(slot.bucket->compressed, [&](std::size_t first, std::size_t count) {
      std::fill_n(owed.begin() + static_cast<std::ptrdiff_t>(first), count, 0.0F);
    });
    if (std::ranges::any_of(owed, [](float value) { return value != 0; })) {
      unsent.resize(owed.size());
      add_finite(unsent, owed);
    }
  }
  unsent.reserve(slot.bucket->elements());
  set_variant(slot, variant);
  slot.unsent = std::move(unsent);
}

}  // namespace thinreduce
