#include "thinreduce/transport/transport.h"

#include <fmt/format.h>

#include <algorithm>

#include "thinreduce/ensure.h"
#include "thinreduce/error.h"

namespace thinreduce {

namespace {

// As good as forever, yet a clock can add it.
constexpr Seconds kForever = std::chrono::hours(24 * 365 * 100);

// A track whose messages travel on other channels of the same transport.
class Track final : public Transport {
 public:
  Track(Transport& whole, int number) : whole_(whole), number_(number) {}

  [[nodiscard]] int rank() const override { return whole_.rank(); }
  [[nodiscard]] int size() const override { return whole_.size(); }
  [[nodiscard]] Clock::time_point now() const override { return whole_.now(); }
  void abandon(const std::string& reason) noexcept override { whole_.abandon(reason); }
  [[nodiscard]] std::unique_ptr<Transport> open_track(int /*number*/) override {
    throw Error(ErrorCode::bad_input,
                "a session can't be opened on a track of a transport; open it on the transport");
  }

 private:
  Pending start_send(int peer, Channel channel, std::span<const std::byte> message) override {
    return whole_.send(peer, on_track(number_, channel), message);
  }
  Pending start_receive(int peer, Channel channel, std::span<std::byte> message) override {
    return whole_.receive(peer, on_track(number_, channel), message);
  }

  Transport& whole_;
  const int number_;
};

}  // namespace

void WaitLimits::check() const {
  if (!(silence.count() > 0)) {
    throw Error(ErrorCode::bad_input, fmt::format("timeout is {} s; it must be above 0, and inf "
                                                  "means forever",
                                                  silence.count()));
  }
  if (!(patience.count() >= 0)) {
    throw Error(ErrorCode::bad_input, fmt::format("patience is {} s; it must be at least 0, and 0 "
                                                  "or inf means forever",
                                                  patience.count()));
  }
}

Deadline Deadline::after(Seconds allowed) {
  if (!(allowed.count() >= 0)) {
    throw Error(ErrorCode::bad_input,
                fmt::format("a time limit is {} s; it must be at least 0, and inf means forever",
                            allowed.count()));
  }
  const Seconds bounded = std::min(allowed, kForever);
  return {Clock::now() + std::chrono::duration_cast<Clock::duration>(bounded), allowed, allowed};
}

Deadline Deadline::after(const WaitLimits& limits) {
  Deadline deadline = after(limits.patience.count() == 0 ? kForever : limits.patience);
  deadline.silence = limits.silence;
  return deadline;
}

Traffic& Traffic::operator+=(const Traffic& more) {
  bytes_sent += more.bytes_sent;
  bytes_received += more.bytes_received;
  messages_sent += more.messages_sent;
  messages_received += more.messages_received;
  return *this;
}

std::unique_ptr<Transport> Transport::open_track(int number) {
  ensure(number >= 1 && number <= kMaxTracks, "a track must have a valid number", number);
  return std::make_unique<Track>(*this, number);
}

void Transport::require_peer(int peer) const {
  ensure(peer >= 0 && peer < size() && peer != rank(),
         "a message must go to another rank of this world", peer, rank(), size());
}

Pending Transport::send(int peer, Channel channel, std::span<const std::byte> message) {
  require_peer(peer);
  auto pending = start_send(peer, channel, message);
  count(peer, {.bytes_sent = message.size(), .messages_sent = 1});
  return pending;
}

Pending Transport::receive(int peer, Channel channel, std::span<std::byte> message) {
  require_peer(peer);
  auto pending = start_receive(peer, channel, message);
  count(peer, {.bytes_received = message.size(), .messages_received = 1});
  return pending;
}

void Transport::count(int peer, const Traffic& more) {
  if (whole_ != nullptr) whole_->count(peer, more);
  const std::lock_guard lock(traffic_mutex_);
  traffic_.resize(static_cast<std::size_t>(size()));
  traffic_[static_cast<std::size_t>(peer)] += more;
}

std::vector<Traffic> Transport::traffic() const {
  const std::lock_guard lock(traffic_mutex_);
  return traffic_;
}

Traffic Transport::total_traffic() const {
  const std::lock_guard lock(traffic_mutex_);
  Traffic total;
  for (const Traffic& traffic : traffic_) total += traffic;
  return total;
}

}  // namespace thinreduce
