// Finds the members of a new world, and how far the ranks of the old one are. Every rank of the new
// world sends a record to every other; all see the same records, so all come to the same verdict.
//
// A reconfiguration that fails may have succeeded on some ranks: their old world is then another
// one than that of the rest. So ranks know each other by a random number that a session keeps, and
// not by their ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/engine/state_file.h"

namespace thinreduce {

using MemberId = std::uint64_t;

// Returns a number that no other session has.
[[nodiscard]] MemberId new_member_id();

// How far a rank is with a step that it has begun.
enum class StepPhase : std::uint8_t {
  none = 0,     // between two steps
  begun = 1,    // it may have reduced some buckets
  reduced = 2,  // it has reduced all of them, and does not know whether the others have
};

struct Member {
  MemberId id = 0;
  std::uint64_t steps = 0;  // that it has reduced completely
  StepPhase phase = StepPhase::none;
  std::vector<MemberId> old_world{};  // in rank order; empty for a rank that joins
  // Ranks that have left and whose debts are part of this rank's state.
  std::vector<MemberId> took_over{};
  // Ranks that have handed their states to this one and may still come back.
  std::vector<MemberId> heir_of{};

  [[nodiscard]] bool joins() const { return old_world.empty(); }
};

[[nodiscard]] std::vector<std::byte> encode_member(const Member& member);
// Reads the record of new rank `rank`. Throws Error{bad_frame}.
[[nodiscard]] Member decode_member(std::span<const std::byte> bytes, int rank);

// Returns the ids of all ranks, in rank order.
[[nodiscard]] std::vector<MemberId> gather_ids(Exchange& exchange, MemberId own);
// A rank may hand its state to an heir, not hear that it has arrived, and come back after the heir
// has gone on with it. It then joins like a new rank, with an id of its own, because another rank
// owes what it owed. Does that to such records.
void let_replaced_join(std::vector<Member>& members);
// Returns the records of all ranks of a new world, in rank order, with ranks replaced like that.
[[nodiscard]] std::vector<Member> gather_members(Exchange& exchange, const Member& own);
// Throws the same Error{mismatch} on all ranks unless the ranks of the old world have reduced the
// same buckets equally often.
void compare_progress(Exchange& exchange, const std::vector<Member>& members,
                      const SessionState& own);

// Returns the rank that takes over the state of `leaver`: the next one that stays; -1 if none does.
[[nodiscard]] int heir_of(int leaver, const std::vector<int>& leaving, int world);

// Returns what a new world of `members`, in rank order, means for its rank `rank`; all but `repeat`
// and `seconds`. It goes on from the fewest steps that one of them has completed. Throws the same
// Error{mismatch} on all ranks if one of them has no way back to that step.
[[nodiscard]] Reconfiguration describe_change(const std::vector<Member>& members, int rank);

}  // namespace thinreduce
