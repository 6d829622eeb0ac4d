// A law of every transport: a thread that waits on one track does not hold up another, and the
// messages of tracks do not mix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <stdexcept>
#include <vector>

#include "thinreduce/transport/transport.h"

namespace thinreduce {

// Returns the track whose data a channel carries; 0 for other channels and the transport itself.
inline int track_carrying_data(Channel channel) {
  for (int number = 1; number <= kMaxTracks; ++number) {
    if (channel == on_track(number, Channel::data)) return number;
  }
  return 0;
}

// Must be called on all ranks. Throws if the law does not hold between ranks 0 and 1.
inline void use_tracks(Transport& transport) {
  constexpr int kRounds = 20;
  if (transport.rank() > 1) return;
  const int peer = 1 - transport.rank();
  const auto soon = [] { return Deadline::after(Seconds(60)); };
  const auto message = [](int number) {
    return std::vector<std::byte>(static_cast<std::size_t>(100 * number),
                                  static_cast<std::byte>(number));
  };
  const auto expect = [&](Transport& track, int number) {
    std::vector<std::byte> got(message(number).size());
    track.receive(peer, Channel::data, got)->wait(soon());
    if (got != message(number)) throw std::runtime_error("a message of another track arrived");
  };
  const std::uint64_t before = transport.total_traffic().messages_sent;
  const auto one = transport.open_track(1);
  const auto other = transport.open_track(2);
  std::promise<void> exchanged;
  const Moment begin = transport.hand_over();
  auto busy = std::async(std::launch::async, [&] {
    other->go_on_from(begin);
    for (int number = 1; number <= kRounds; ++number) {
      const auto out = message(number);
      const auto sent = other->send(peer, Channel::data, out);
      expect(*other, number);
      sent->wait(soon());
    }
    static_cast<void>(other->hand_over());
    exchanged.set_value();
  });
  // Rank 1 sends it when the other track has done its exchange, so rank 0 waits all that time.
  if (transport.rank() == 0) {
    one->go_on_from(begin);
    expect(*one, 99);
  } else {
    exchanged.get_future().wait_for(std::chrono::seconds(60));
    one->go_on_from(begin);
    one->send(peer, Channel::data, message(99))->wait(soon());
  }
  static_cast<void>(one->hand_over());
  busy.get();
  if (one->total_traffic().messages_sent + one->total_traffic().messages_received != 1 ||
      other->total_traffic().messages_sent != kRounds) {
    throw std::runtime_error("a track does not count its own messages");
  }
  if (transport.total_traffic().messages_sent - before !=
      one->total_traffic().messages_sent + other->total_traffic().messages_sent) {
    throw std::runtime_error("a transport does not count the messages of its tracks");
  }
}

}  // namespace thinreduce
