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
namespace {

constexpr std::uint32_t kNoBucket = 0xFFFFFFFF;

}  // namespace

void Reducer::open_step(Transport& track) {
  const Planner::Task task = planner_->open_step();
  keeping_samples_ = task == Planner::Task::keep_samples;
  if (task == Planner::Task::try_candidates) try_candidates(track);
}

void Reducer::keep_sample(Slot& slot, const Job& job) const {
  const RegisteredBucket& given = *slot.given;
  const bool compresses = given.raw < given.elements() && slot.step >= options_.warmup_steps;
  if (given.variants.empty() || !compresses) return;
  slot.sample = take_sample(given.compressed, job.values, sample_size(link_, transport_.size()));
}

void Reducer::try_candidates(Transport& track) {
  // All ranks must be about to try the same; this also lets them start together.
  Statement statement;
  statement.id.method = auto_info().wire_id;
  statement.id.bucket = kNoBucket;
  statement.id.step = planner_->opened();
  for (const auto& [id, slot] : slots_) {
    if (!slot.sample.empty()) statement.id.elements += id + slot.sample.size();
  }
  try {
    agree(track, statement, options_.limits(), {});
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
  if (planner_->plan().trials > 0) {
    link_ = agree_on_link(track, options_.limits(), options_.link);
  }
  Spare spare(*this);
  const TrialSetup setup{.options = planner_->options(),
                         .seed = options_.seed,
                         .make_exchange = [&](const FrameId& id) {
                           return make_exchange(track, id, spare.lent.buffers);
                         }};
  std::map<std::uint32_t, Planner::Trials> trials;
  for (auto& [id, slot] : slots_) {
    if (slot.sample.empty()) continue;
    trials[id] = thinreduce::try_candidates(setup, *slot.given, slot.sample);
    slot.sample = {};
  }
  for (const auto& [id, variant] : planner_->decide(trials, link_)) {
    if (const auto found = slots_.find(id); found != slots_.end()) {
      change_variant(found->second, variant);
    }
  }
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
  set_variant(slot, variant);
  slot.unsent = std::move(unsent);
}

}  // namespace thinreduce
