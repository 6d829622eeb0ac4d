#include "thinreduce/engine/membership.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>

#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"
#include "thinreduce/wire/bytes.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce {
namespace {

[[noreturn]] void disagree(const std::string& why) {
  throw Error(ErrorCode::mismatch, "reconfigure: " + why);
}

// Returns the fewest steps that a member of the old world has completed.
std::uint64_t common_step(const std::vector<Member>& members) {
  std::optional<std::uint64_t> common;
  for (const Member& member : members) {
    if (!member.joins()) common = std::min(common.value_or(member.steps), member.steps);
  }
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const Member& member = members[rank];
    if (member.joins() || member.steps == *common) continue;
    if (member.steps == *common + 1 && member.phase == StepPhase::reduced) continue;
    disagree(fmt::format(
        "rank {} has completed {} steps, but another rank only {}; commit every step on "
        "all ranks before the optimizer's step, or restart from a checkpoint",
        rank, member.steps, *common));
  }
  return common.value_or(0);
}

std::set<MemberId> ids_of(const std::vector<Member>& members) {
  std::set<MemberId> ids;
  for (const Member& member : members) {
    if (!ids.insert(member.id).second)
      disagree("two ranks have the same session; make one per rank");
  }
  return ids;
}

std::string in_words(const Reconfiguration& change, std::size_t world) {
  std::string text = fmt::format("{} {} on after {} steps", world,
                                 world == 1 ? "rank goes" : "ranks go", change.steps);
  const auto add = [&](const std::vector<int>& ranks, std::string_view which,
                       std::string_view what) {
    if (ranks.empty()) return;
    text += fmt::format("; {} rank{} {} {}", which, ranks.size() > 1 ? "s" : "",
                        fmt::join(ranks, ", "), what);
  };
  add(change.lost, "old", "lost, with all gradient that was not sent yet");
  add(change.left, "old", "left and handed over the gradient that was not sent yet");
  add(change.joined, "new", "joined");
  return text;
}

}  // namespace

MemberId new_member_id() {
  std::random_device random;
  return static_cast<MemberId>(random()) << 32 | random();
}

std::vector<std::byte> encode_member(const Member& member) {
  std::vector<std::uint64_t> words = {member.id, member.steps,
                                      static_cast<std::uint64_t>(member.phase),
                                      member.old_world.size(), member.took_over.size()};
  words.insert(words.end(), member.old_world.begin(), member.old_world.end());
  words.insert(words.end(), member.took_over.begin(), member.took_over.end());
  words.insert(words.end(), member.heir_of.begin(), member.heir_of.end());
  const auto bytes = bytes_of(words);
  return {bytes.begin(), bytes.end()};
}

Member decode_member(std::span<const std::byte> bytes, int rank) {
  const std::string what = fmt::format("record of rank {}", rank);
  ByteReader reader(bytes, what);
  Member member;
  member.id = reader.value<MemberId>();
  member.steps = reader.value<std::uint64_t>();
  const auto phase = reader.value<std::uint64_t>();
  const auto world = reader.value<std::uint64_t>();
  const auto taken = reader.value<std::uint64_t>();
  const std::size_t most = reader.left() / sizeof(MemberId);
  if (phase > static_cast<std::uint64_t>(StepPhase::reduced) || world > most ||
      taken > most - world) {
    throw Error(ErrorCode::bad_frame,
                fmt::format("{} is invalid: phase {}, {} and {} ranks in {} bytes", what, phase,
                            world, taken, bytes.size()));
  }
  member.phase = static_cast<StepPhase>(phase);
  for (std::uint64_t i = 0; i < world; ++i) member.old_world.push_back(reader.value<MemberId>());
  for (std::uint64_t i = 0; i < taken; ++i) member.took_over.push_back(reader.value<MemberId>());
  while (reader.left() > 0) member.heir_of.push_back(reader.value<MemberId>());
  return member;
}

std::vector<MemberId> gather_ids(Exchange& exchange, MemberId own) {
  std::vector<MemberId> ids;
  gather(exchange, std::as_bytes(std::span(&own, 1)), sizeof own,
         [&](int rank, std::span<const std::byte> id) {
           if (id.size() != sizeof own) {
             throw Error(ErrorCode::bad_frame,
                         fmt::format("rank {} sent an id of {} bytes, expected {}; run the same "
                                     "build on all ranks",
                                     rank, id.size(), sizeof own));
           }
           ids.push_back(load_value<MemberId>(id, 0));
         });
  return ids;
}

std::vector<Member> gather_members(Exchange& exchange, const Member& own) {
  constexpr std::size_t kLongestRecord = std::size_t{1024} * 1024;
  std::vector<Member> members;
  gather(exchange, encode_member(own), kLongestRecord,
         [&](int rank, std::span<const std::byte> record) {
           members.push_back(decode_member(record, rank));
         });
  let_replaced_join(members);
  return members;
}

void let_replaced_join(std::vector<Member>& members) {
  std::set<MemberId> replaced;
  for (const Member& member : members) {
    replaced.insert(member.took_over.begin(), member.took_over.end());
  }
  for (Member& member : members) {
    if (!replaced.contains(member.id)) continue;
    // All ranks find the same id, also if this reconfiguration fails and the rank comes again.
    member = {.id = checksum(std::as_bytes(std::span(&member.id, 1)))};
  }
}

void compare_progress(Exchange& exchange, const std::vector<Member>& members,
                      const SessionState& own) {
  std::vector<std::uint64_t> words;
  for (const auto& [id, bucket] : own.buckets) {
    if (bucket.step > 0) words.insert(words.end(), {id, bucket.step, bucket.elements});
  }
  const std::uint64_t progress = checksum(bytes_of(words));
  std::optional<std::uint64_t> expected;
  int first = -1;  // rank with that progress
  int other = -1;  // rank with another one
  gather(exchange, std::as_bytes(std::span(&progress, 1)), sizeof progress,
         [&](int rank, std::span<const std::byte> hash) {
           const bool joins = members[static_cast<std::size_t>(rank)].joins();
           if (joins || hash.size() != sizeof progress) return;
           const auto theirs = load_value<std::uint64_t>(hash, 0);
           if (!expected) first = rank;
           if (expected.value_or(theirs) != theirs) other = rank;
           expected = expected.value_or(theirs);
         });
  if (other < 0) return;
  throw Error(ErrorCode::mismatch,
              fmt::format("reconfigure: rank {} stopped at another step than rank {}; begin and "
                          "commit every step on all ranks, or restart from a checkpoint",
                          other, first));
}

int heir_of(int leaver, const std::vector<int>& leaving, int world) {
  for (int distance = 1; distance < world; ++distance) {
    const int rank = (leaver + distance) % world;
    if (std::ranges::find(leaving, rank) == leaving.end()) return rank;
  }
  return -1;
}

Reconfiguration describe_change(const std::vector<Member>& members, int rank) {
  const std::set<MemberId> present = ids_of(members);
  std::set<MemberId> left;
  for (const Member& member : members) {
    left.insert(member.took_over.begin(), member.took_over.end());
    left.insert(member.heir_of.begin(), member.heir_of.end());
  }
  Reconfiguration change;
  change.steps = common_step(members);
  const auto first_old = std::ranges::find_if_not(members, &Member::joins);
  if (first_old != members.end()) {
    change.source = static_cast<int>(first_old - members.begin());
    // A rank that joins uses the numbers of the first that was there.
    const Member& own = members[static_cast<std::size_t>(rank)];
    const auto& old_world = own.joins() ? first_old->old_world : own.old_world;
    for (std::size_t old = 0; old < old_world.size(); ++old) {
      if (present.contains(old_world[old])) continue;
      (left.contains(old_world[old]) ? change.left : change.lost).push_back(static_cast<int>(old));
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i].joins()) change.joined.push_back(static_cast<int>(i));
    }
  }
  change.text = in_words(change, members.size());
  return change;
}

}  // namespace thinreduce
