// The reducer's state between steps: slots of buckets, copies to undo a step, save and load.
#include <fmt/format.h>

#include <utility>

#include "thinreduce/engine/reducer.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

constexpr const char* kVariantField = "variant";

// Returns the variant of an `auto` bucket that a state was saved with. Throws Error{bad_state}.
std::size_t saved_variant(const RegisteredBucket& bucket, const BucketState& state) {
  if (bucket.variants.empty()) return 0;
  for (const StateField& field : split_fields(state)) {
    if (field.name != kVariantField || field.kind != FieldKind::number) continue;
    if (field.values.size() != sizeof(std::uint64_t)) break;
    const auto variant = load_value<std::uint64_t>(field.values, 0);
    if (variant < bucket.variants.size()) return static_cast<std::size_t>(variant);
    throw Error(
        ErrorCode::bad_state,
        fmt::format("bucket {}: its method has number {}, but 'auto' chooses among {}; the state "
                    "is damaged or of another version: use another checkpoint",
                    bucket.id(), variant, bucket.variants.size()));
  }
  throw Error(
      ErrorCode::bad_state,
      fmt::format("bucket {}: the state does not say which method 'auto' had chosen; use another "
                  "checkpoint",
                  bucket.id()));
}

}  // namespace

Reducer::Slot Reducer::make_slot(std::shared_ptr<const RegisteredBucket> given) const {
  Slot slot;
  slot.given = std::move(given);
  const RegisteredBucket& own = *slot.given;
  const auto saved = loaded_.find(own.id());
  if (saved == loaded_.end()) {
    set_variant(slot, 0);
    if (keeps(slot)) slot.unsent.reserve(own.elements());
    return slot;
  }
  if (saved->second.elements != own.elements()) {
    throw Error(ErrorCode::bad_state,
                fmt::format("the saved state of bucket {} has {} elements, the bucket has {}; load "
                            "the state of the same model and buckets",
                            own.id(), saved->second.elements, own.elements()));
  }
  set_variant(slot, saved_variant(own, saved->second));
  load_fields([&](Archive& archive) { show_state(slot, archive); }, saved->second, own.id(),
              place());
  if (keeps(slot)) slot.unsent.reserve(own.elements());
  slot.step = saved->second.step;
  return slot;
}

void Reducer::set_variant(Slot& slot, std::size_t variant) const {
  const bool is_auto = !slot.given->variants.empty();
  const auto bucket = is_auto ? slot.given->variants[variant] : slot.given;
  std::unique_ptr<Method> method;
  if (bucket->has_method) {
    const BucketLayout nothing{.id = bucket->id(), .elements = 0, .tensors = {}};
    method = bucket->spec.make({.layout = bucket->compressible ? bucket->compressed : nothing,
                                .rank = transport_.rank(),
                                .world = transport_.size(),
                                .seed = options_.seed});
  }
  std::vector<float> raw_values(bucket->compressible ? bucket->raw : 0);
  std::vector<float> raw_gradient;
  if (bucket->keeps) raw_gradient.reserve(raw_values.size());
  // From here on nothing can fail.
  slot.variant = variant;
  slot.bucket = bucket;
  slot.method = std::move(method);
  slot.raw_values = std::move(raw_values);
  slot.raw_gradient = std::move(raw_gradient);
}

void Reducer::show_state(Slot& slot, Archive& archive) {
  const Spec& spec = slot.bucket->spec;
  const bool is_auto = !slot.given->variants.empty();
  if (is_auto) archive.count(kVariantField, slot.variant, slot.given->variants.size() - 1);
  if (!slot.bucket->layout.spec.empty() || is_auto) {
    // Only a bucket's own spec, or the one that 'auto' chose: the session's is in the settings.
    const std::uint64_t own = checksum(spec.full_text());
    std::uint64_t saved = own;
    archive.number("spec", saved);
    if (saved != own) {
      throw Error(ErrorCode::bad_state,
                  fmt::format("its spec differs from '{}'; use the spec with which it was saved",
                              spec.full_text()));
    }
  }
  if (keeps(slot)) {
    archive.summed("unsent", slot.unsent, Archive::Length::per_element_or_none);
    if (const auto bad = kernels::first_nonfinite(slot.unsent); bad < slot.unsent.size()) {
      throw Error(ErrorCode::bad_state,
                  fmt::format("value {} of field 'unsent' is {} and must be finite; use another "
                              "checkpoint",
                              bad, slot.unsent[bad]));
    }
  }
  if (slot.method) slot.method->state(archive);
}

void Reducer::begin_step() {
  ++begun_;
  link_before_ = link_;
  if (planner_ != nullptr) conditions_before_ = planner_->conditions();
}

void Reducer::copy_for_undo(Slot& slot) {
  if (slot.copied_in == begun_) return;
  slot.before.step = slot.step;
  slot.before.elements = slot.bucket->elements();
  slot.before.fields = save_fields([&](Archive& archive) { show_state(slot, archive); }, place(),
                                   std::move(slot.before.fields));
  slot.copied_in = begun_;
}

void Reducer::undo_step() {
  if (begun_ == 0) return;
  // Another rank may not have come as far as a change of the plan.
  link_ = link_before_;
  if (planner_ != nullptr) planner_->set_conditions(conditions_before_);
  for (auto& [id, slot] : slots_) {
    if (slot.unsent_since == begun_) slot.unsent.clear();  // there was no memory for a copy
    slot.unsent_since = 0;
    if (slot.copied_in != begun_) continue;
    loaded_[id] = std::move(slot.before);
    slot = make_slot(slot.given);
    slot.confirmed = true;
    loaded_.erase(id);
  }
}

void Reducer::forget(std::uint32_t id) {
  slots_.erase(id);
  loaded_.erase(id);
}

SessionState Reducer::save() {
  SessionState state;
  state.buckets = loaded_;
  for (auto& [id, kept] : slots_) {
    Slot& slot = kept;  // a lambda of clang can't hold on to a binding
    BucketState& bucket = state.buckets[id];
    bucket.step = slot.step;
    bucket.elements = slot.bucket->elements();
    bucket.fields = save_fields([&](Archive& archive) { show_state(slot, archive); }, place());
  }
  return state;
}

void Reducer::load(const SessionState& state) {
  auto loaded = std::exchange(loaded_, state.buckets);
  std::map<std::uint32_t, Slot> fresh;
  try {
    for (const auto& [id, slot] : slots_) {
      if (slot.confirmed) fresh.emplace(id, make_slot(slot.given));
    }
  } catch (...) {
    loaded_ = std::move(loaded);
    throw;
  }
  slots_ = std::move(fresh);
  for (auto& [id, slot] : slots_) {
    slot.confirmed = true;
    loaded_.erase(id);
  }
}

}  // namespace thinreduce
