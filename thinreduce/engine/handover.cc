#include "thinreduce/engine/handover.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "thinreduce/collective/broadcast.h"
#include "thinreduce/collective/framed.h"
#include "thinreduce/collective/gather.h"
#include "thinreduce/error.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/wire/bytes.h"

namespace thinreduce {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{16} * 1024 * 1024;

// Returns the number of bytes that each rank sends to this one.
std::vector<std::uint64_t> announce_sizes(Exchange& exchange,
                                          std::span<const std::vector<std::byte>> outgoing) {
  std::vector<std::uint64_t> own;
  for (const auto& message : outgoing) own.push_back(message.size());
  std::vector<std::uint64_t> sizes;
  gather(exchange, bytes_of(own), own.size() * sizeof(std::uint64_t),
         [&](int rank, std::span<const std::byte> payload) {
           if (payload.size() != own.size() * sizeof(std::uint64_t)) {
             throw Error(ErrorCode::bad_frame,
                         fmt::format("rank {} announces {} bytes of sizes, expected {}; run the "
                                     "same build on all ranks",
                                     rank, payload.size(), own.size() * sizeof(std::uint64_t)));
           }
           const auto at = static_cast<std::size_t>(exchange.rank()) * sizeof(std::uint64_t);
           sizes.push_back(load_value<std::uint64_t>(payload, at));
         });
  return sizes;
}

[[noreturn]] void refuse(const SessionState& other, const std::string& why) {
  throw Error(ErrorCode::bad_state,
              fmt::format("old rank {} (of {}) handed over a state that does not fit: {}; run the "
                          "same build with the same settings on all ranks, or restart from a "
                          "checkpoint",
                          other.rank, other.world, why));
}

void check_settings(const SessionState& own, const SessionState& other) {
  if (own.settings == other.settings) return;
  refuse(other,
         fmt::format("its settings are '{}', this rank's are '{}'", other.settings, own.settings));
}

void take_over_field(StateField& field, const StateField& other) {
  if (field.kind == FieldKind::section) {
    if (field.values.empty()) field.values = other.values;
    return;
  }
  if (field.kind != FieldKind::summed || other.values.empty()) return;
  std::vector<float> sum = field.floats();
  const std::vector<float> more = other.floats();
  sum.resize(std::max(sum.size(), more.size()));
  kernels::add(std::span(sum).first(more.size()), more);
  const auto bytes = std::as_bytes(std::span(sum));
  field.values.assign(bytes.begin(), bytes.end());
}

// Calls change(field, number of the section or 0) for every field of a bucket.
template <typename Change>
void change_fields(BucketState& bucket, Change change) {
  std::vector<StateField> fields = split_fields(bucket);
  std::size_t section = 0;
  for (StateField& field : fields) {
    change(field, section);
    if (field.kind == FieldKind::section) ++section;
  }
  bucket.fields = join_fields(fields);
}

enum class Receiver {
  survivor,  // has a state, and lacks only the sections that it did not keep before
  joiner,    // has no state
};

// Returns the state without the values that this rank owes.
SessionState without_debts(const SessionState& state) {
  SessionState result;
  result.world = state.world;
  result.rank = state.rank;
  result.settings = state.settings;
  for (const auto& [id, bucket] : state.buckets) {
    BucketState& light = result.buckets[id];
    light.step = bucket.step;
    light.elements = bucket.elements;
    std::vector<StateField> fields;
    for (const FieldView& field : view_fields(bucket)) {
      fields.push_back({field.name, field.kind, {}});
      if (field.kind == FieldKind::summed) continue;  // as large as the bucket
      fields.back().values.assign(field.values.begin(), field.values.end());
    }
    light.fields = join_fields(fields);
  }
  return result;
}

// Returns the part of a state without debts that rank `to` of the new world needs: sections that
// it will keep and, for a joiner, all that ranks have in common.
SessionState extract(const SessionState& state, const RankInWorld& to, Receiver receiver) {
  SessionState result = state;
  for (const auto& [id, given] : state.buckets) {
    bool useful = receiver == Receiver::joiner;
    change_fields(result.buckets.at(id), [&](StateField& field, std::size_t section) {
      if (field.kind == FieldKind::section) {
        if (Archive::keeper_of(section, to.world) != to.rank) field.values.clear();
        useful = useful || !field.values.empty();
      } else if (receiver == Receiver::survivor) {
        field.values.clear();
      }
    });
    // A bucket that was never reduced has the same state on a rank that starts with none.
    if (!useful || given.step == 0) result.buckets.erase(id);
  }
  return result;
}

// Makes a state of the old world one of rank `place` in the new world: drops sections
// that others keep.
void move_to(SessionState& state, const RankInWorld& place) {
  for (auto& [id, bucket] : state.buckets) {
    const auto is_section = [](const FieldView& field) { return field.kind == FieldKind::section; };
    if (std::ranges::none_of(view_fields(bucket), is_section)) continue;
    change_fields(bucket, [&](StateField& field, std::size_t section) {
      if (field.kind == FieldKind::section &&
          Archive::keeper_of(section, place.world) != place.rank) {
        field.values.clear();
      }
    });
  }
  state.rank = place.rank;
  state.world = place.world;
}

// Returns the message for every rank of the new world.
std::vector<std::vector<std::byte>> messages_of(const SessionState& state,
                                                const std::vector<Member>& members, int own,
                                                int source) {
  std::vector<std::vector<std::byte>> outgoing(members.size());
  if (members[static_cast<std::size_t>(own)].joins()) return outgoing;
  const SessionState light = without_debts(state);
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const RankInWorld to{static_cast<int>(rank), static_cast<int>(members.size())};
    if (to.rank == own) continue;
    const bool all = members[rank].joins() && own == source;
    SessionState part = extract(light, to, all ? Receiver::joiner : Receiver::survivor);
    if (all || !part.buckets.empty()) outgoing[rank] = encode_state(std::move(part));
  }
  return outgoing;
}

}  // namespace

std::vector<std::vector<std::byte>> exchange_messages(
    Exchange& exchange, std::span<const std::vector<std::byte>> outgoing) {
  const std::vector<std::uint64_t> sizes = announce_sizes(exchange, outgoing);
  std::vector<std::vector<std::byte>> incoming(sizes.size());
  // Piece p of every message is in flight at the same time.
  const auto piece_of = [&](std::size_t rank, std::size_t first) {
    const auto whole = std::span(outgoing[rank]);
    return whole.subspan(first, std::min(kPieceBytes, whole.size() - first));
  };
  for (std::size_t first = 0;; first += kPieceBytes) {
    std::vector<std::pair<std::size_t, std::unique_ptr<FramedReceive>>> receives;
    std::vector<FramedSend> sends;
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
      const int peer = static_cast<int>(rank);
      if (peer == exchange.rank()) continue;
      if (first < sizes[rank]) {
        const std::size_t limit = std::min<std::uint64_t>(kPieceBytes, sizes[rank] - first);
        receives.emplace_back(rank, std::make_unique<FramedReceive>(exchange, peer, limit));
      }
      if (first < outgoing[rank].size()) {
        const auto piece = piece_of(rank, first);
        sends.emplace_back(exchange, peer, encode_header(exchange.id(), exchange.rank(), piece),
                           piece);
      }
    }
    if (receives.empty() && sends.empty()) return incoming;
    for (auto& [rank, receive] : receives) receive->wait_header(exchange);
    for (auto& [rank, receive] : receives) {
      receive->wait_payload(exchange);
      const auto piece = receive->payload();
      if (piece.size() != std::min<std::uint64_t>(kPieceBytes, sizes[rank] - first)) {
        throw Error(
            ErrorCode::bad_frame,
            fmt::format("rank {} announced a message of {} bytes; its piece at byte {} has {}",
                        rank, sizes[rank], first, piece.size()));
      }
      incoming[rank].insert(incoming[rank].end(), piece.begin(), piece.end());
    }
    for (FramedSend& send : sends) send.wait(exchange);
  }
}

void broadcast_message(Exchange& exchange, int root, std::vector<std::byte>& message) {
  std::uint64_t size = message.size();
  broadcast(exchange, root, std::as_writable_bytes(std::span(&size, 1)));
  if (exchange.rank() != root) message.clear();
  for (std::uint64_t first = 0; first < size; first += kPieceBytes) {
    const std::size_t count = std::min<std::uint64_t>(kPieceBytes, size - first);
    if (exchange.rank() != root) message.resize(first + count);
    broadcast(exchange, root, std::span(message).subspan(first, count));
  }
}

void take_over(SessionState& state, const SessionState& other) {
  check_settings(state, other);
  for (const auto& [number, theirs] : other.buckets) {
    const std::uint32_t id = number;  // a lambda of clang can't hold on to a binding
    const auto found = state.buckets.find(id);
    if (found == state.buckets.end() && theirs.step == 0) continue;  // nobody has reduced it
    if (found == state.buckets.end() || found->second.step != theirs.step ||
        found->second.elements != theirs.elements) {
      refuse(other, fmt::format("bucket {} differs in size or step from this rank's", id));
    }
    const std::vector<StateField> others = split_fields(theirs);
    std::size_t at = 0;
    change_fields(found->second, [&](StateField& field, std::size_t /*section*/) {
      if (at >= others.size() || others[at].name != field.name || others[at].kind != field.kind) {
        refuse(other, fmt::format("bucket {} has other fields than this rank's", id));
      }
      take_over_field(field, others[at++]);
    });
    if (at != others.size())
      refuse(other, fmt::format("bucket {} has more fields than this rank's", id));
  }
}

void exchange_states(Exchange& exchange, const std::vector<Member>& members, SessionState& state) {
  const auto first_old = std::ranges::find_if_not(members, &Member::joins);
  const auto source = first_old - members.begin();
  const RankInWorld place{exchange.rank(), exchange.size()};
  if (first_old == members.end()) return move_to(state, place);
  const auto incoming = exchange_messages(
      exchange, messages_of(state, members, exchange.rank(), static_cast<int>(source)));
  const auto read = [&](std::size_t rank) {
    return decode_state(incoming[rank], fmt::format("state from rank {}", rank));
  };
  const bool joins = members[static_cast<std::size_t>(exchange.rank())].joins();
  if (joins) {
    SessionState shared = read(static_cast<std::size_t>(source));
    check_settings(state, shared);
    state = std::move(shared);
  }
  for (std::size_t rank = 0; rank < incoming.size(); ++rank) {
    const bool taken = joins && static_cast<std::ptrdiff_t>(rank) == source;
    if (!incoming[rank].empty() && !taken) take_over(state, read(rank));
  }
  move_to(state, place);
}

}  // namespace thinreduce
