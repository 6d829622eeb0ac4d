// Hands states of sessions, or the parts of them that another rank needs from now on, from rank to
// rank when the world changes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/engine/membership.h"
#include "thinreduce/engine/state_file.h"

namespace thinreduce {

// Sends outgoing[peer] to every peer and returns the message of each, by rank; this rank's own is
// empty. Messages travel in pieces, so that a peer can't make this rank allocate more than it
// sends. Latencies: 1, and one per piece of 16 MiB. Bytes sent: per peer 72 and its message, with
// 64 per piece.
[[nodiscard]] std::vector<std::vector<std::byte>> exchange_messages(
    Exchange& exchange, std::span<const std::vector<std::byte>> outgoing);

// Replaces `message` by that of rank `root`, in pieces for the same reason.
void broadcast_message(Exchange& exchange, int root, std::vector<std::byte>& message);

// Adds what another rank of the run owes to `state`, and takes the sections that `state` lacks.
// Throws Error{bad_state} unless both are states of one run at the same step.
void take_over(SessionState& state, const SessionState& other);

// Turns this rank's state in the old world into the one with which it starts in the new world. What
// a rank owes stays with it. The keepers of sections get them from their old keepers, if these are
// members. Ranks that join get everything that ranks have in common, from the first that does not.
// Throws Error{bad_state} for a state from a peer that does not fit.
void exchange_states(Exchange& exchange, const std::vector<Member>& members, SessionState& state);

}  // namespace thinreduce
