// Which messages of a process group may never end, see waiting_threads.h.
//
// Gloo forgets a message only if its connection breaks while the message is under way. Of those
// between two ranks, one at a time is under way, and messages of one track pass in the order in
// which both ranks have started them. So a message is safe as soon as a later one of its track has
// passed. A short message that is received passes at once. One that is sent may stand behind a long
// one of its track that was started before it, or of another track: there the order is that in
// which the peer asks for them.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "thinreduce/transport/transport.h"

namespace thinreduce::python {

// Counts the messages between this rank and its peers. Any thread may use it.
class MessageOrder {
 public:
  enum class Way { send, receive };
  // One message.
  struct Place {
    int peer;
    Way way;
    int track;
    bool is_long;
    std::uint64_t number = 0;  // among all to this peer, or all from it
  };

  explicit MessageOrder(int ranks) : sends_(static_cast<std::size_t>(ranks)), receives_(sends_) {}

  // Numbers a message that starts now.
  Place start(int peer, Way way, Channel channel, bool is_long) {
    Place place{.peer = peer, .way = way, .track = track_of(channel), .is_long = is_long};
    const std::lock_guard lock(mutex_);
    Line& line = line_of(place);
    place.number = ++line.started;
    line.tracks.set(static_cast<std::size_t>(place.track));
    if (is_long) line.long_ones.insert(place.number);
    return place;
  }

  // Takes note that a message has passed.
  void pass(const Place& place) {
    const std::lock_guard lock(mutex_);
    Line& line = line_of(place);
    std::uint64_t& passed = line.passed[static_cast<std::size_t>(place.track)];
    passed = std::max(passed, place.number);
    line.long_ones.erase(place.number);
  }

  // Takes note that nobody waits for a message any more.
  void forget(const Place& place) {
    if (!place.is_long) return;
    const std::lock_guard lock(mutex_);
    line_of(place).long_ones.erase(place.number);
  }

  // Returns whether Gloo may forget a message that has not been waited for.
  [[nodiscard]] bool may_be_forgotten(const Place& place) {
    const std::lock_guard lock(mutex_);
    const Line& line = line_of(place);
    if (line.passed[static_cast<std::size_t>(place.track)] > place.number) return false;
    if (place.is_long) return true;
    if (place.way == Way::receive) return false;
    return line.tracks.count() > 1 ||
           (!line.long_ones.empty() && *line.long_ones.begin() < place.number);
  }

 private:
  // The messages to one peer, or from it.
  struct Line {
    std::uint64_t started = 0;
    std::array<std::uint64_t, kMaxTracks + 1> passed{};  // the largest number, by track
    std::set<std::uint64_t> long_ones;                   // that have not been waited for
    std::bitset<kMaxTracks + 1> tracks;                  // that had a message
  };

  // The stamps of an emulated link are 128 channels higher.
  static int track_of(Channel channel) {
    return static_cast<int>(channel) % 128 / static_cast<int>(on_track(1, Channel::data));
  }
  Line& line_of(const Place& place) {
    auto& lines = place.way == Way::send ? sends_ : receives_;
    return lines[static_cast<std::size_t>(place.peer)];
  }

  std::mutex mutex_;
  std::vector<Line> sends_;  // by peer
  std::vector<Line> receives_;
};

}  // namespace thinreduce::python
