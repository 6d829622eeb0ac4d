#include "thinreduce/engine/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "thinreduce/engine/state_file.h"
#include "thinreduce/error.h"
#include "thinreduce/method/archive.h"

namespace thinreduce {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::bad_state, fmt::format("states to redistribute: {}", why));
}

// The fields of one bucket, per old rank.
using Fields = std::vector<std::vector<StateField>>;

void check_world(const std::vector<SessionState>& states) {
  if (states.empty()) refuse("no states were given; give the state of every rank");
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    const SessionState& state = states[rank];
    if (state.world != static_cast<int>(states.size())) {
      refuse(
          fmt::format("{} were given, but one is from a world of {} ranks; give the states of all "
                      "ranks of one run",
                      states.size(), state.world));
    }
    if (state.rank != static_cast<int>(rank)) {
      refuse(fmt::format("the state of rank {} is missing; rank {} was found in its place", rank,
                         state.rank));
    }
    if (state.settings != states[0].settings) {
      refuse(fmt::format("rank 0 ran '{}', rank {} ran '{}'; give the states of one run",
                         states[0].settings, rank, state.settings));
    }
    if (state.buckets.size() != states[0].buckets.size()) {
      refuse(fmt::format("rank 0 has {} buckets, rank {} has {}; give the states of one run",
                         states[0].buckets.size(), rank, state.buckets.size()));
    }
    for (const auto& [id, bucket] : states[0].buckets) {
      const auto found = state.buckets.find(id);
      if (found == state.buckets.end() || found->second.step != bucket.step ||
          found->second.elements != bucket.elements) {
        refuse(
            fmt::format("bucket {} differs in size or step between ranks 0 and {}; use states "
                        "saved at the same step",
                        id, rank));
      }
    }
  }
}

// Returns the sum of a field over the old ranks that become new rank `rank`, added in their order.
std::vector<std::byte> merged(const Fields& fields, std::size_t index, int rank, int world) {
  std::size_t bytes = 0;
  for (const auto& one : fields) bytes = std::max(bytes, one[index].values.size());
  std::vector<float> sum(bytes / sizeof(float));
  for (std::size_t old = 0; old < fields.size(); ++old) {
    if (static_cast<int>(old) % world != rank) continue;
    const auto values = fields[old][index].floats();
    for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
  const auto out = std::as_bytes(std::span(sum));
  return {out.begin(), out.end()};
}

void check_fields(const Fields& fields, std::uint32_t bucket) {
  for (const auto& one : fields) {
    const bool equal = std::equal(
        fields[0].begin(), fields[0].end(), one.begin(), one.end(),
        [](const auto& a, const auto& b) { return a.name == b.name && a.kind == b.kind; });
    if (!equal)
      refuse(fmt::format(
          "bucket {}: the ranks' methods keep different fields; use the states of one run",
          bucket));
  }
}

// Returns the fields of new rank `rank` in a new world of `world` ranks.
std::vector<StateField> fields_of(const Fields& fields, int rank, int world) {
  const auto old_world = static_cast<int>(fields.size());
  std::vector<StateField> own = fields[static_cast<std::size_t>(rank % old_world)];
  std::size_t next_section = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (own[i].kind == FieldKind::summed) own[i].values = merged(fields, i, rank, world);
    if (own[i].kind != FieldKind::section) continue;
    const std::size_t section = next_section++;
    own[i].values.clear();
    if (Archive::keeper_of(section, world) == rank) {
      own[i].values =
          fields[static_cast<std::size_t>(Archive::keeper_of(section, old_world))][i].values;
    }
  }
  return own;
}

std::vector<SessionState> redistribute(std::vector<SessionState> states, int world) {
  if (world < 1) refuse(fmt::format("the new world must have at least 1 rank, not {}", world));
  std::sort(states.begin(), states.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  check_world(states);

  std::vector<SessionState> result;
  for (int rank = 0; rank < world; ++rank) {
    // Replicated fields are copied from one old rank.
    result.push_back(states[static_cast<std::size_t>(rank) % states.size()]);
    result.back().rank = rank;
    result.back().world = world;
  }
  for (const auto& [id, bucket] : states[0].buckets) {
    Fields fields;
    for (const SessionState& state : states) {
      fields.push_back(split_fields(state.buckets.at(id)));
    }
    check_fields(fields, id);
    for (SessionState& state : result) {
      state.buckets.at(id).fields = join_fields(fields_of(fields, state.rank, world));
    }
  }
  return result;
}

}  // namespace

std::vector<std::vector<std::byte>> redistribute(std::span<const std::vector<std::byte>> states,
                                                 int world) {
  std::vector<SessionState> decoded;
  for (const auto& state : states) decoded.push_back(decode_state(state, "saved state"));
  std::vector<std::vector<std::byte>> result;
  for (SessionState& state : redistribute(std::move(decoded), world)) {
    result.push_back(encode_state(std::move(state)));
  }
  return result;
}

}  // namespace thinreduce
