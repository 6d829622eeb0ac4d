#include "thinreduce/engine/reducer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "thinreduce/collective/float_sum.h"
#include "thinreduce/collective/shared_loops.h"
#include "thinreduce/engine/findings.h"
#include "thinreduce/engine/guard.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/methods/fp32.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

// Up to this size, looking for NaN before the exchange costs less than one more message after it.
constexpr std::size_t kCheckFirstBytes = std::size_t{1024} * 1024;

std::uint16_t fp32_id() {
  static const std::uint16_t id = fp32_info().wire_id;
  return id;
}

std::uint64_t hash_of(const Link& link) {
  const double figures[] = {link.bytes_per_second, link.latency.count()};
  return checksum(std::as_bytes(std::span(figures)));
}

// Calls copy(place in the bucket, place in the run) for every run of uncompressed elements; the
// run holds them side by side.
template <typename Copy>
void for_raw_elements(const BucketLayout& compressed, std::span<float> values, std::span<float> run,
                      Copy copy) {
  std::size_t at = 0;
  for_uncompressed(compressed, [&](std::size_t first, std::size_t count) {
    copy(values.subspan(first, count), run.subspan(at, count));
    at += count;
  });
}

// Keeps the uncompressed elements of a bucket, which the reducer sets to zero for the method.
void keep_raw(const RegisteredBucket& bucket, Original& original) {
  for_uncompressed(bucket.compressed, [&](std::size_t first, std::size_t count) {
    original.keep({first, first + count});
  });
}

}  // namespace

void Reducer::add_finite(std::span<float> to, std::span<const float> values) {
  constexpr float kMax = std::numeric_limits<float>::max();
  kernels::add(to, values);
  for (float& value : to) value = std::clamp(value, -kMax, kMax);
}

Reducer::Spare::Spare(Reducer& reducer) : reducer_(reducer) {
  const std::lock_guard lock(reducer_.mutex_);
  if (reducer_.spare_.empty()) return;
  lent = std::move(reducer_.spare_.back());
  reducer_.spare_.pop_back();
}

Reducer::Spare::~Spare() {
  const std::lock_guard lock(reducer_.mutex_);
  reducer_.spare_.push_back(std::move(lent));
}

std::uint16_t Reducer::method_id(const Slot& slot) const {
  return compresses(slot) ? slot.bucket->spec.info->wire_id : fp32_id();
}

void Reducer::refuse(const Job& job, Transport& transport) const {
  Statement statement;
  statement.id.bucket = job.bucket->id();
  statement.id.elements = job.bucket->elements();
  statement.id.layout_hash = job.bucket->hash;
  statement.numbers = job.refusal->why;
  statement.first_bad = job.refusal->given;
  try {
    agree(transport, statement, options_.limits(), job.bucket->layout);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::mismatch && error.code() != ErrorCode::bad_input) throw;
    if (planner_ != nullptr && error.code() == ErrorCode::mismatch) planner_->freeze();
    throw Disagreement{error};
  }
  throw_broken_invariant("an agreement with a refusal fails", {job.bucket->id()});
}

Reducer::Slot& Reducer::slot_of(const Job& job) {
  const std::lock_guard lock(mutex_);
  auto found = slots_.find(job.bucket->id());
  if (found == slots_.end()) {
    found = slots_.emplace(job.bucket->id(), make_slot(job.bucket)).first;
  }
  return found->second;
}

Statement Reducer::statement_of(const Slot& slot, const Job& job, Workers workers) const {
  const RegisteredBucket& bucket = *job.bucket;
  Statement statement;
  statement.id.method = method_id(slot);
  statement.id.bucket = bucket.id();
  statement.id.step = slot.step;
  statement.id.elements = bucket.elements();
  statement.id.layout_hash = bucket.hash;
  statement.fingerprint = (slot.method ? slot.method->fingerprint() : 0) + slot.variant;
  // The size of messages follows from the link, which a plan changes between two steps.
  if (planner_) statement.fingerprint ^= hash_of(link_);
  statement.last_result = slot.last_result;
  // An unsent gradient is added with a clamp, in which Inf would vanish before the late check.
  const bool late = checks_late(slot, job) && slot.unsent.empty();
  statement.first_bad = late ? job.values.size() : first_nonfinite(workers, job.values);
  statement.figures = slot.figures;
  if (options_.guard != Guard::off && statement.first_bad == job.values.size()) {
    statement.norm = norm(workers, job.values);
  }
  if (statement.first_bad < job.values.size()) {
    statement.numbers = Numbers::gradient_not_finite;
  } else if (slot.bucket->spec.info->second_moment && compresses(slot)) {
    statement.first_bad = kernels::first_no_square(job.second_moment);
    if (statement.first_bad < job.second_moment.size()) {
      statement.numbers = Numbers::second_moment_no_square;
    }
  }
  return statement;
}

std::map<int, double> Reducer::agree_on(Slot& slot, const Job& job, Transport& transport) {
  const RegisteredBucket& bucket = *job.bucket;
  std::map<int, double> outliers;
  try {
    const Statement own = statement_of(slot, job, Workers(pool_, transport));
    const Agreed agreed = agree(transport, own, options_.limits(), bucket.layout);
    const BucketTimes& last = agreed.times;
    if (!slot.given->variants.empty()) planner_->set_choice(bucket.id(), slot.variant);
    if (!slot.given->variants.empty() && last.seconds > 0) {
      planner_->note(bucket.id(), bucket.elements() - bucket.raw, last);
    }
    // The ranks agree with each other; the bucket must also be the same as in the last step.
    if (bucket.hash != slot.bucket->hash) {
      throw Error(ErrorCode::bad_input,
                  fmt::format("bucket {} was reduced with other tensors or another size before "
                              "({} elements then, {} now); give a new layout a new id",
                              bucket.id(), slot.bucket->elements(), bucket.elements()));
    }
    if (options_.guard != Guard::off) outliers = find_outliers(agreed.norms, options_.guard_factor);
    if (options_.guard == Guard::refuse && !outliers.empty()) {
      throw refused_outliers(own.id, outliers, options_.guard_factor);
    }
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    if (error.code() == ErrorCode::mismatch || error.code() == ErrorCode::bad_input) {
      if (planner_ != nullptr && error.code() == ErrorCode::mismatch) planner_->freeze();
      // A bucket that was never reduced may be submitted again with the layout of the others.
      if (!slot.confirmed) slots_.erase(bucket.id());
      throw Disagreement{error};
    }
    throw;
  }
  const std::lock_guard lock(mutex_);
  slot.confirmed = true;
  loaded_.erase(bucket.id());
  return outliers;
}

bool Reducer::checks_late(const Slot& slot, const Job& job) const {
  // Neither a method nor `unsent` must see a NaN, because it would stay there for good. A guard
  // needs the norm, so it reads the values anyway.
  return options_.guard == Guard::off && !compresses(slot) && !slot.bucket->keeps &&
         job.values.size_bytes() > kCheckFirstBytes;
}

Exchange Reducer::make_exchange(Transport& track, const FrameId& id, SpareBuffers& spare) {
  Exchange exchange(track, options_.limits(), id);
  exchange.spare = &spare;
  exchange.link = link_;
  exchange.workers = Workers(pool_, track);
  return exchange;
}

Report Reducer::reduce(Job& job, Transport& track) {
  if (job.refusal) refuse(job, track);
  const auto started = track.now();
  const RegisteredBucket& bucket = *job.bucket;
  Spare spare(*this);
  Original original(job.values, spare.lent.original);
  Slot* found = nullptr;
  std::optional<Exchange> made;
  std::map<int, double> outliers;
  try {
    found = &slot_of(job);
    Slot& slot = *found;
    made.emplace(make_exchange(track,
                               {.method = method_id(slot),
                                .bucket = bucket.id(),
                                .step = slot.step,
                                .elements = bucket.elements(),
                                .layout_hash = bucket.hash},
                               spare.lent.buffers));
    outliers = agree_on(slot, job, track);
    if (const auto own = outliers.find(track.rank());
        own != outliers.end() && options_.guard == Guard::clip) {
      if (!slot.bucket->keeps) original.keep_all();
      scale(made->workers, job.values, static_cast<float>(options_.guard_factor / own->second));
    }
    made->stages.wait = Seconds(track.now() - started).count();
    copy_for_undo(slot);
    if (keeping_samples_) keep_sample(slot, job);
  } catch (const Disagreement&) {
    throw;  // the caller has the gradient and may submit it again
  } catch (...) {
    original.restore();
    keep(job);
    throw;
  }
  Slot& slot = *found;
  Exchange& exchange = *made;
  try {
    reduce_slot(slot, job, exchange, original);
  } catch (...) {
    slot.sample = {};  // it may hold what the step failed by
    throw;
  }
  if (keeping_samples_) keep_mean_of_sample(slot, job);

  ++slot.step;
  const auto every = options_.check_replicas_every;
  const bool compare = every > 0 && slot.step % every == 0;
  slot.last_result = compare ? checksum(std::as_bytes(job.values)) : 0;

  Report report = report_of(slot, job, exchange);
  report.queued = Seconds(started - job.submitted.time).count();
  report.total = Seconds(track.now() - job.submitted.time).count();
  if (planner_ != nullptr) {
    slot.figures = {.ready = static_cast<float>(job.ready),
                    .seconds = static_cast<float>(report.total),
                    .busy = static_cast<float>(report.stages.encode + report.stages.decode),
                    .wait = static_cast<float>(report.stages.wait)};
  }
  report.outliers = std::move(outliers);
  return report;
}

Report Reducer::report_of(const Slot& slot, const Job& job, Exchange& exchange) noexcept {
  Report report;
  report.step = slot.step;
  report.buckets = 1;
  report.elements = job.bucket->elements();
  report.payload_bytes = exchange.payload_bytes;
  report.stages = exchange.stages;
  report.statistics = exchange.statistics.take();
  return report;
}

void Reducer::reduce_slot(Slot& slot, const Job& job, Exchange& exchange, Original& original) {
  const bool give_back = !slot.bucket->keeps;  // no residual has the gradient after a failure
  if (give_back) exchange.set_original(&original);
  try {
    // The unsent gradient that is added here must not be given back.
    if (!slot.unsent.empty()) exchange.keep_original();
    if (!slot.unsent.empty()) add_finite(job.values, slot.unsent);
    if (compresses(slot)) {
      if (give_back) keep_raw(*slot.bucket, original);
      reduce_compressed(slot, job, exchange);
    } else {
      reduce_uncompressed(slot, job, exchange);
    }
  } catch (const Disagreement&) {
    if (give_back) original.restore();
    throw;
  } catch (...) {
    if (give_back) original.restore();
    if (give_back && keeps(slot)) add_unsent(slot, job);
    throw;
  }
  slot.unsent.clear();
}

// The method's exchange is the last one, because the method settles its residual with it: a failure
// after it would find the gradient gone. Raw tensors that go directly to all ranks travel beside
// the method's first messages; their sum is complete before the method has received anything.
//
// `unsent` and `raw_gradient` have their memory since the slot was made, so that nothing is
// allocated where memory has run out.
void Reducer::reduce_compressed(Slot& slot, const Job& job, Exchange& exchange) {
  const BucketLayout& compressed = slot.bucket->compressed;
  const std::span<float> raw(slot.raw_values);
  for_raw_elements(compressed, job.values, raw, [](std::span<float> in, std::span<float> run) {
    std::copy(in.begin(), in.end(), run.begin());
  });
  if (slot.bucket->keeps) slot.raw_gradient = slot.raw_values;
  bool taken = false;  // the method has its part of the gradient
  try {
    EarlySum raw_sum(exchange, raw, 1.0F / static_cast<float>(exchange.size()));
    exchange.finish_before_wait([&] { raw_sum.finish(exchange); });
    for_raw_elements(compressed, job.values, raw, [](std::span<float> in, std::span<float>) {
      std::fill(in.begin(), in.end(), 0.0F);
    });
    taken = true;
    slot.method->reduce(Bucket{compressed, job.values, job.second_moment}, exchange);
    exchange.finish_early_work();  // for a method that never waited
  } catch (...) {
    if (!slot.bucket->keeps) throw;
    slot.unsent.assign(job.values.size(), 0.0F);
    if (!taken) std::copy(job.values.begin(), job.values.end(), slot.unsent.begin());
    for_raw_elements(
        compressed, slot.unsent, slot.raw_gradient,
        [](std::span<float> out, std::span<float> run) { std::ranges::copy(run, out.begin()); });
    throw;
  }
  slot.method->finish_uncompressed(raw);
  for_raw_elements(compressed, job.values, raw, [](std::span<float> out, std::span<float> run) {
    std::copy(run.begin(), run.end(), out.begin());
  });
}

void Reducer::reduce_uncompressed(Slot& slot, const Job& job, Exchange& exchange) {
  const float share = 1.0F / static_cast<float>(exchange.size());
  bool copied = false;
  try {
    if (slot.bucket->keeps) slot.raw_gradient.assign(job.values.begin(), job.values.end());
    copied = true;
    if (checks_late(slot, job)) {
      const Nonfinite found = sum_floats_checked(exchange, job.values, share);
      if (found.in_result) {
        const auto error = compare_findings(exchange, job.bucket->layout, found.own);
        if (error) throw Disagreement{*error};
      }
    } else {
      sum_bucket(exchange, job.values, share);
    }
    if (slot.method) slot.method->finish_uncompressed(job.values);
  } catch (...) {
    if (slot.bucket->keeps && copied) std::swap(slot.unsent, slot.raw_gradient);
    if (slot.bucket->keeps && !copied) slot.unsent.assign(job.values.begin(), job.values.end());
    throw;
  }
}

void Reducer::keep(const Job& job) {
  if (job.refusal) return;  // it has no gradient
  const RegisteredBucket& bucket = *job.bucket;
  Slot* found = nullptr;
  try {
    found = &slot_of(job);
  } catch (const Error&) {
    return;  // no step of this bucket would have succeeded
  }
  Slot& slot = *found;
  if (!keeps(slot) || slot.bucket->hash != bucket.hash) return;
  try {
    copy_for_undo(slot);  // a step that is taken back takes this back, too
  } catch (const std::bad_alloc&) {
    // Without a copy, this step can only be taken back from an empty sum; a gradient that stays
    // after all is better than one that is lost.
    if (slot.unsent.empty()) slot.unsent_since = begun_;
  }
  add_unsent(slot, job);
}

void Reducer::add_unsent(Slot& slot, const Job& job) {
  if (kernels::first_nonfinite(job.values) < job.values.size()) return;
  slot.unsent.resize(job.values.size());
  add_finite(slot.unsent, job.values);
}

}  // namespace thinreduce
