#include "thinreduce/engine/session_implementation.h"

#include <fmt/format.h>

#include <utility>

#include "thinreduce/engine/advice.h"
#include "thinreduce/engine/handover.h"
#include "thinreduce/engine/probe.h"
#include "thinreduce/engine/settings.h"
#include "thinreduce/error.h"

namespace thinreduce {

Session::Implementation::Implementation(std::shared_ptr<Transport> transport,
                                        const SessionOptions& options)
    : transport_(std::move(transport)),
      options_(options),
      spec_(checked_spec(options.spec, options)),
      settings_(settings_text(spec_, options)),
      pool_(checked_threads(options)),
      reducer_(*transport_, options_, pool_) {
  if (spec_.is_auto()) planner_.emplace(auto_options(spec_), transport_->size());
  reducer_.set_planner(planner_ ? &*planner_ : nullptr);
  options_.limits().check();
  meet_others();
  flights_.emplace(*transport_, reducer_, planner_.has_value());
}

std::shared_ptr<const RegisteredBucket> Session::Implementation::add_bucket(
    BucketLayout layout) const {
  Spec spec = layout.spec.empty() ? spec_ : checked_spec(layout.spec, options_);
  if (spec.is_auto() && spec.full_text() != spec_.full_text()) {
    throw Error(ErrorCode::bad_spec,
                fmt::format("bucket {} has the spec '{}', the session '{}'; give 'auto' to the "
                            "whole session",
                            layout.id, layout.spec, spec_.full_text()));
  }
  return std::make_shared<RegisteredBucket>(std::move(layout), std::move(spec),
                                            options_.min_elements);
}

void Session::Implementation::broadcast(int root, std::vector<std::byte>& message) {
  drain();
  flights_->require_alive();
  if (root < 0 || root >= transport_->size()) {
    throw Error(ErrorCode::bad_input,
                fmt::format("root must be 0 to {}, got {}", transport_->size() - 1, root));
  }
  try {
    Exchange exchange(*transport_, options_.limits(), {.bucket = kNoBucket, .step = steps_});
    broadcast_message(exchange, root, message);
  } catch (...) {
    throw flights_->fail(current_error("a broadcast"));
  }
}

SessionState Session::Implementation::save() {
  drain();
  SessionState state = reducer_.save();
  state.world = transport_->size();
  state.rank = transport_->rank();
  state.settings = settings_;
  return state;
}

void Session::Implementation::load(const SessionState& state, const std::string& what) {
  drain();
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::bad_state, fmt::format("{}: {}", what, why));
  };
  if (state.world != transport_->size()) {
    refuse(
        fmt::format("it was saved in a world of {} ranks, this one has {}; redistribute() "
                    "converts states",
                    state.world, transport_->size()));
  }
  if (state.rank != transport_->rank()) {
    refuse(fmt::format("it belongs to rank {}, this is rank {}; load the state of rank {}",
                       state.rank, transport_->rank(), transport_->rank()));
  }
  if (state.settings != settings_) {
    refuse(
        fmt::format("it was saved with '{}', this session has '{}'; create the session with the "
                    "saved settings",
                    state.settings, settings_));
  }
  reducer_.load(state);
}

void Session::Implementation::forget(std::uint32_t id) {
  idle_reducer().forget(id);
  flights_->forget(id);
  if (planner_) planner_->forget(id);
}

void Session::Implementation::meet_others() {
  std::vector<std::string> all;
  Link link;
  const auto give_up = [&](const Error& error) {
    // All ranks find a mismatch by themselves.
    if (error.code() != ErrorCode::mismatch) transport_->abandon(error.what());
    throw error;
  };
  try {
    Exchange texts(*transport_, options_.limits(), {.bucket = kNoBucket});
    all = gather_texts(texts, start_text(settings_, options_));
    require_equal(all);
    Exchange exchange(*transport_, options_.limits(), {.bucket = kNoBucket});
    world_ = gather_ids(exchange, id_);
    link = agree_on_link(*transport_, options_.limits(), options_.link);
  } catch (const Error& error) {
    const bool advise = all.empty() || error.code() == ErrorCode::bad_frame;
    give_up(advise ? with_advice(error) : error);
  } catch (...) {
    give_up(current_error("the start of a session"));
  }
  reducer_.set_link(link);
}

void Session::Implementation::require_own_process() const {
  if (here()) return;
  throw Error(ErrorCode::unavailable,
              fmt::format("rank {}: the session belongs to process {}, this is its forked child "
                          "{}; create a session of its own",
                          transport_->rank(), creator_, ::getpid()));
}

}  // namespace thinreduce
