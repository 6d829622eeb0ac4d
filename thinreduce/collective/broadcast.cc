#include "thinreduce/collective/broadcast.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "thinreduce/collective/checked.h"
#include "thinreduce/collective/chunks.h"

namespace thinreduce {
namespace {

BroadcastBy choose(int world, std::size_t bytes, const Link& link) {
  const double peers = world - 1;
  const double latency = link.latency.count();
  const double once =
      link.bytes_per_second > 0 ? static_cast<double>(bytes) / link.bytes_per_second : 0;
  const double chain = peers * latency + once;
  const double direct = latency + peers * once;
  const double relays = 2 * latency + 2 * once;
  if (direct <= std::min(chain, relays)) return BroadcastBy::direct;
  return relays < chain ? BroadcastBy::relays : BroadcastBy::chain;
}

void along_chain(Exchange& exchange, int root, std::span<std::byte> message,
                 std::size_t segment_bytes) {
  const int world = exchange.size();
  const int rank = exchange.rank();
  const bool first = rank == root;
  const bool last = (rank + 1) % world == root;
  const std::size_t segments =
      std::max<std::size_t>(1, (message.size() + segment_bytes - 1) / segment_bytes);
  const auto segment = [&](std::size_t s) {
    return part(message, cut({0, message.size()}, segments, s));
  };
  std::vector<CheckedReceive> receives;
  if (!first) {
    for (std::size_t s = 0; s < segments; ++s) {
      receives.emplace_back(exchange, (rank + world - 1) % world, segment(s));
    }
  }
  std::vector<CheckedSend> sends;
  for (std::size_t s = 0; s < segments; ++s) {
    if (!first) receives[s].wait(exchange);
    if (last) continue;
    const int next = (rank + 1) % world;
    first ? sends.emplace_back(exchange, next, segment(s))
          : sends.emplace_back(exchange, next, segment(s), receives[s].hash());
  }
  for (auto& send : sends) send.wait(exchange);
}

void directly(Exchange& exchange, int root, std::span<std::byte> message) {
  if (exchange.rank() != root) return CheckedReceive(exchange, root, message).wait(exchange);
  std::optional<std::uint64_t> hash;
  std::vector<CheckedSend> sends;
  for (int distance = 1; distance < exchange.size(); ++distance) {
    sends.emplace_back(exchange, (root + distance) % exchange.size(), message, hash);
  }
  for (auto& send : sends) send.wait(exchange);
}

// The rank at distance d from the root relays part d - 1.
void by_relays(Exchange& exchange, int root, std::span<std::byte> message) {
  const int world = exchange.size();
  const auto part_of = [&](int distance) {
    return part(message, cut({0, message.size()}, static_cast<std::size_t>(world - 1),
                             static_cast<std::size_t>(distance - 1)));
  };
  const auto rank_at = [&](int distance) { return (root + distance) % world; };
  const int own = (exchange.rank() + world - root) % world;  // distance from the root
  std::vector<CheckedReceive> receives;
  std::vector<CheckedSend> sends;
  if (own == 0) {
    for (int d = 1; d < world; ++d) {
      if (!part_of(d).empty()) sends.emplace_back(exchange, rank_at(d), part_of(d));
    }
  } else {
    for (int d = 1; d < world; ++d) {
      if (d == own || part_of(d).empty()) continue;
      receives.emplace_back(exchange, rank_at(d), part_of(d));
    }
    if (!part_of(own).empty()) {
      CheckedReceive relayed(exchange, root, part_of(own));
      relayed.wait(exchange);
      for (int turn = 1; turn < world; ++turn) {
        const int d = (own + turn) % world;
        if (d == 0) continue;
        sends.emplace_back(exchange, rank_at(d), part_of(own), relayed.hash());
      }
    }
  }
  for (auto& receive : receives) receive.wait(exchange);
  for (auto& send : sends) send.wait(exchange);
}

}  // namespace

void broadcast(Exchange& exchange, int root, std::span<std::byte> message,
               const BroadcastOptions& options) {
  if (options.is_payload) exchange.payload_bytes += message.size();
  if (exchange.size() == 1 || message.empty()) return;
  switch (options.by.value_or(choose(exchange.size(), message.size(), exchange.link))) {
    case BroadcastBy::chain:
      return along_chain(exchange, root, message, options.segment_bytes);
    case BroadcastBy::direct:
      return directly(exchange, root, message);
    case BroadcastBy::relays:
      return by_relays(exchange, root, message);
  }
}

void broadcast_all(Exchange& exchange, std::span<const std::span<std::byte>> messages) {
  const auto message_of = [&](int rank) { return messages[static_cast<std::size_t>(rank)]; };
  for (const auto message : messages) exchange.payload_bytes += message.size();
  const int world = exchange.size();
  const auto own = message_of(exchange.rank());
  std::vector<CheckedReceive> receives;
  std::vector<CheckedSend> sends;
  for (int distance = 1; distance < world; ++distance) {
    const int from = (exchange.rank() + world - distance) % world;
    if (!message_of(from).empty()) receives.emplace_back(exchange, from, message_of(from));
  }
  if (!own.empty() && world > 1) {
    std::optional<std::uint64_t> hash;
    for (int distance = 1; distance < world; ++distance) {
      sends.emplace_back(exchange, (exchange.rank() + distance) % world, own, hash);
    }
  }
  for (auto& receive : receives) receive.wait(exchange);
  for (auto& send : sends) send.wait(exchange);
}

}  // namespace thinreduce
