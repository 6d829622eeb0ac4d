#include "thinreduce/collective/broadcast.h"

#include <algorithm>
#include <vector>

#include "thinreduce/collective/checked.h"
#include "thinreduce/collective/chunks.h"

namespace thinreduce {

void broadcast(Exchange& exchange, int root, std::span<std::byte> message,
               const BroadcastOptions& options) {
  const int world = exchange.size();
  const int rank = exchange.rank();
  if (options.is_payload) exchange.payload_bytes += message.size();
  if (world == 1 || message.empty()) return;
  const bool first = rank == root;
  const bool last = (rank + 1) % world == root;
  const std::size_t segments = std::max<std::size_t>(
      1, (message.size() + options.segment_bytes - 1) / options.segment_bytes);
  const auto segment = [&](std::size_t s) {
    const UnitRange range = cut({0, message.size()}, segments, s);
    return message.subspan(range.begin, range.size());
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

}  // namespace thinreduce
