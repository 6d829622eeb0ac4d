#include "thinreduce/engine/redistribute.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "thinreduce/error.h"

namespace thinreduce {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::bad_state, fmt::format("states to redistribute: {}", why));
}

// Of one bucket, by old rank.
using Fields = std::vector<std::vector<StateField>>;

void check_world(const std::vector<SessionState>& states) {
  if (states.empty()) refuse("there are none");
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    const SessionState& state = states[rank];
    if (state.world != static_cast<int>(states.size())) {
      refuse(fmt::format("{} were given, one of them is of a world of {} ranks", states.size(),
                         state.world));
    }
    if (state.rank != static_cast<int>(rank)) {
      refuse(fmt::format("the one of rank {} is missing, rank {}'s is there instead", rank,
                         state.rank));
    }
    if (state.settings != states[0].settings) {
      refuse(fmt::format("rank 0 ran '{}', rank {} ran '{}'", states[0].settings, rank,
                         state.settings));
    }
    if (state.buckets.size() != states[0].buckets.size()) {
      refuse(fmt::format("rank 0 has {} buckets, rank {} has {}", states[0].buckets.size(), rank,
                         state.buckets.size()));
    }
    for (const auto& [id, bucket] : states[0].buckets) {
      const auto found = state.buckets.find(id);
      if (found == state.buckets.end() || found->second.step != bucket.step ||
          found->second.elements != bucket.elements) {
        refuse(fmt::format("bucket {} is not the same, at the same step, on ranks 0 and {}", id,
                           rank));
      }
    }
  }
}

bool is_debt(const StateField& field) {
  return field.kind == FieldKind::residual || field.kind == FieldKind::owed;
}

bool starts_layer(const StateField& field) {
  return field.kind == FieldKind::number && field.name == "decided";
}

// GradiVeQ shows a layer from the field "decided" on, and what comes after "renewed at" only at the
// layer's owner, the rank whose number is the layer's modulo the world. What the ranks owe comes
// after the last layer. Gives every old rank what the owners have; to_owners() takes it away again.
struct Layers {
  std::vector<std::size_t> starts;
  std::size_t end = 0;

  explicit Layers(const std::vector<StateField>& fields) {
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (starts_layer(fields[i])) starts.push_back(i);
      if (!starts.empty() && !is_debt(fields[i])) end = i + 1;
    }
  }
  [[nodiscard]] std::size_t end_of(std::size_t layer) const {
    return layer + 1 < starts.size() ? starts[layer + 1] : end;
  }
};

void from_owners(Fields& fields) {
  const std::vector<Layers> places(fields.begin(), fields.end());
  const std::size_t layers = places[0].starts.size();
  for (const Layers& own : places) {
    if (own.starts.size() != layers) refuse("the ranks' methods keep different layers");
  }
  if (layers == 0) return;
  std::vector<StateField> owned;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const std::size_t rank = layer % fields.size();
    const auto at = [&](std::size_t index) {
      return fields[rank].begin() + static_cast<std::ptrdiff_t>(index);
    };
    owned.insert(owned.end(), at(places[rank].starts[layer]), at(places[rank].end_of(layer)));
  }
  for (std::size_t rank = 0; rank < fields.size(); ++rank) {
    auto& one = fields[rank];
    const auto at = [&](std::size_t index) {
      return one.begin() + static_cast<std::ptrdiff_t>(index);
    };
    const auto rest = one.erase(at(places[rank].starts[0]), at(places[rank].end));
    one.insert(rest, owned.begin(), owned.end());
  }
}

void to_owners(std::vector<StateField>& fields, int rank, int world) {
  int layer = -1;
  bool tail = false;
  std::erase_if(fields, [&](const StateField& field) {
    if (starts_layer(field)) {
      ++layer;
      tail = false;
    }
    const bool drop = tail && !is_debt(field) && layer % world != rank;
    if (field.name == "renewed at") tail = true;
    return drop;
  });
}

// The sum of what goes to `rank`, in the order of the old ranks.
std::vector<std::byte> share(const Fields& fields, std::size_t index, int rank, int world) {
  std::size_t bytes = 0;
  for (const auto& one : fields) bytes = std::max(bytes, one[index].values.size());
  std::vector<float> sum(bytes / sizeof(float));
  for (std::size_t old = 0; old < fields.size(); ++old) {
    if (static_cast<int>(old) % world != rank) continue;
    const auto residual = fields[old][index].floats();
    for (std::size_t i = 0; i < residual.size(); ++i) sum[i] += residual[i];
  }
  const auto out = std::as_bytes(std::span(sum));
  return {out.begin(), out.end()};
}

}  // namespace

std::vector<SessionState> redistribute(std::vector<SessionState> states, int world) {
  if (world < 1) refuse(fmt::format("a world has at least 1 rank, not {}", world));
  std::sort(states.begin(), states.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  check_world(states);

  std::vector<SessionState> result;
  for (int rank = 0; rank < world; ++rank) {
    // A new rank has some old rank's copy of all that is no residual.
    result.push_back(states[static_cast<std::size_t>(rank) % states.size()]);
    result.back().rank = rank;
    result.back().world = world;
  }
  for (const auto& [id, bucket] : states[0].buckets) {
    Fields fields;
    for (const SessionState& state : states) {
      fields.push_back(split_fields(state.buckets.at(id)));
    }
    from_owners(fields);
    for (const auto& one : fields) {
      const bool alike = std::equal(
          fields[0].begin(), fields[0].end(), one.begin(), one.end(),
          [](const auto& a, const auto& b) { return a.name == b.name && a.kind == b.kind; });
      if (!alike) refuse(fmt::format("bucket {}: the ranks' methods keep different fields", id));
    }
    for (SessionState& state : result) {
      auto own = fields[static_cast<std::size_t>(state.rank) % fields.size()];
      for (std::size_t i = 0; i < own.size(); ++i) {
        if (is_debt(own[i])) own[i].values = share(fields, i, state.rank, world);
      }
      to_owners(own, state.rank, world);
      state.buckets.at(id).fields = join_fields(own);
    }
  }
  return result;
}

}  // namespace thinreduce
