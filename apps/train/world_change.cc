#include "apps/train/world_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace thinreduce::train {
namespace {

constexpr std::size_t kFactsBytes = sizeof(Checkpoint) + sizeof(std::uint64_t);

std::vector<std::byte> encode(const RunFacts& facts) {
  const std::string path = facts.folder.string();
  std::vector<std::byte> message(kFactsBytes + path.size());
  std::memcpy(message.data(), &facts.state, sizeof facts.state);
  std::memcpy(&message[sizeof facts.state], &facts.first_step, sizeof facts.first_step);
  std::ranges::copy(std::as_bytes(std::span(path)), message.begin() + kFactsBytes);
  return message;
}

void decode(const std::vector<std::byte>& message, int sender, const RunFacts& facts) {
  if (message.size() < kFactsBytes) {
    throw Error(ErrorCode::bad_frame,
                fmt::format("rank {} described the run in {} bytes, which is too short; run the "
                            "same build on all ranks",
                            sender, message.size()));
  }
  std::memcpy(&facts.state, message.data(), sizeof facts.state);
  std::memcpy(&facts.first_step, &message[sizeof facts.state], sizeof facts.first_step);
  facts.folder = std::string(reinterpret_cast<const char*>(message.data()) + kFactsBytes,
                             message.size() - kFactsBytes);
}

}  // namespace

bool is_loss(const Error& error) {
  return error.code() == ErrorCode::lost_peer || error.code() == ErrorCode::timeout;
}

Reconfiguration change_world(apps::ElasticRank& rank, Replica& replica,
                             std::shared_ptr<Transport>& transport, const RunFacts& facts) {
  for (;;) {
    if (!transport) transport = rank.meet();
    try {
      const Reconfiguration change = replica.reconfigure(transport);
      if (!change.joined.empty()) {
        std::vector<std::byte> message = encode(facts);
        replica.session().broadcast(change.source, message);
        const bool joins = std::ranges::count(change.joined, transport->rank()) > 0;
        if (joins) decode(message, change.source, facts);
      }
      facts.state.step = facts.first_step + change.steps;
      return change;
    } catch (const Error& error) {
      if (!is_loss(error)) throw;
      transport = nullptr;
    }
  }
}

}  // namespace thinreduce::train
