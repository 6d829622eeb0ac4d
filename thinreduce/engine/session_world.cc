// The part of a session that takes part in changes of the world: ranks die, leave and join.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "thinreduce/collective/gather.h"
#include "thinreduce/engine/advice.h"
#include "thinreduce/engine/handover.h"
#include "thinreduce/engine/session_implementation.h"
#include "thinreduce/error.h"

namespace thinreduce {

std::vector<int> Session::Implementation::commit_step(bool leave) {
  drain();
  flights_->require_alive();
  phase_ = StepPhase::reduced;
  ++steps_;
  try {
    Exchange exchange(*transport_, options_.limits(), {.bucket = kNoBucket, .step = steps_});
    const auto own = std::as_bytes(std::span(&leave, leave ? 1 : 0));
    std::vector<int> leaving;
    gather(exchange, own, sizeof leave, [&](int rank, std::span<const std::byte> flag) {
      if (!flag.empty()) leaving.push_back(rank);
    });
    phase_ = StepPhase::none;
    if (!leaving.empty()) hand_over(exchange, leaving);
    return leaving;
  } catch (...) {
    throw flights_->fail(current_error("the end of a step"));
  }
}

Reconfiguration Session::Implementation::continue_from(Implementation& old) {
  Exchange exchange(*transport_, options_.limits(), {.bucket = kNoBucket, .step = 1});
  const std::vector<Member> members = gather_members(exchange, old.member());
  Reconfiguration outcome = describe_change(members, exchange.rank());
  const Member& own = members[static_cast<std::size_t>(exchange.rank())];
  if (!own.joins()) old.go_back_to(outcome.steps);
  outcome.repeat = !own.joins() && old.phase_ == StepPhase::begun;
  SessionState state = old.save();
  compare_progress(exchange, members, state);
  took_over_ = own.took_over;
  for (const auto& [id, left] : old.inherited_) {
    const auto has_id = [id = id](const Member& member) { return member.id == id; };
    if (own.joins() || std::ranges::any_of(members, has_id)) continue;  // it has stayed
    take_over(state, left);
    took_over_.push_back(id);
  }
  exchange_states(exchange, members, state);
  reducer_.load(state);
  just_joined_ = own.joins();
  id_ = own.id;
  world_.clear();
  for (const Member& member : members) world_.push_back(member.id);
  steps_ = outcome.steps;
  // If what the caller does next fails, the step is still one to repeat.
  if (outcome.repeat) phase_ = StepPhase::begun;
  return outcome;
}

void Session::Implementation::hand_over(Exchange& exchange, const std::vector<int>& leaving) {
  std::vector<std::vector<std::byte>> outgoing(static_cast<std::size_t>(exchange.size()));
  if (std::ranges::find(leaving, exchange.rank()) != leaving.end()) {
    const int heir = heir_of(exchange.rank(), leaving, exchange.size());
    if (heir >= 0) outgoing[static_cast<std::size_t>(heir)] = encode_state(save());
  }
  const auto incoming = exchange_messages(exchange, outgoing);
  for (const int rank : leaving) {
    const auto& bytes = incoming[static_cast<std::size_t>(rank)];
    if (heir_of(rank, leaving, exchange.size()) != exchange.rank()) continue;
    inherited_[world_[static_cast<std::size_t>(rank)]] =
        decode_state(bytes, fmt::format("state of rank {}, which leaves", rank));
  }
}

Member Session::Implementation::member() const {
  // A rank that has joined and done nothing since has the state of others, and owes nothing.
  const bool is_new = transport_->size() == 1 && steps_ == 0 && reducer_.is_new();
  const bool joins = is_new || just_joined_;
  Member own{.id = id_, .steps = steps_, .phase = phase_, .took_over = took_over_};
  if (!joins) own.old_world = world_;
  for (const auto& [id, state] : inherited_) own.heir_of.push_back(id);
  return own;
}

void Session::Implementation::go_back_to(std::uint64_t steps) {
  if (steps_ > steps) {
    --steps_;
    phase_ = StepPhase::begun;
  }
  if (phase_ == StepPhase::begun) idle_reducer().undo_step();
}

}  // namespace thinreduce
