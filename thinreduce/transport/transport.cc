#include "thinreduce/transport/transport.h"

#include "thinreduce/ensure.h"

namespace thinreduce {

Deadline Deadline::after(Seconds allowed) {
  return {Clock::now() + std::chrono::duration_cast<Clock::duration>(allowed), allowed};
}

Traffic& Transport::with(int peer) {
  ensure(peer >= 0 && peer < size() && peer != rank(),
         "a message must go to another rank of this world", peer, rank(), size());
  if (traffic_.empty()) traffic_.resize(static_cast<std::size_t>(size()));
  return traffic_[static_cast<std::size_t>(peer)];
}

Pending Transport::send(int peer, Channel channel, std::span<const std::byte> message) {
  Traffic& traffic = with(peer);
  auto pending = start_send(peer, channel, message);
  traffic.bytes_sent += message.size();
  ++traffic.messages_sent;
  return pending;
}

Pending Transport::receive(int peer, Channel channel, std::span<std::byte> message) {
  Traffic& traffic = with(peer);
  auto pending = start_receive(peer, channel, message);
  traffic.bytes_received += message.size();
  ++traffic.messages_received;
  return pending;
}

Traffic Transport::total_traffic() const {
  Traffic total;
  for (const Traffic& traffic : traffic_) {
    total.bytes_sent += traffic.bytes_sent;
    total.bytes_received += traffic.bytes_received;
    total.messages_sent += traffic.messages_sent;
    total.messages_received += traffic.messages_received;
  }
  return total;
}

}  // namespace thinreduce
