#include "thinreduce/transport/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "thinreduce/ensure.h"
#include "thinreduce/error.h"

namespace thinreduce {

namespace {

// As good as forever, yet a clock can add it.
constexpr Seconds kForever = std::chrono::hours(24 * 365 * 100);

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
                fmt::format("a timeout of {} s; it must be at least 0, and inf means forever",
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

void Transport::when_woken(std::function<void()> work) {
  work_ = std::move(work);
}

void Transport::wake() noexcept {
  woken_ = true;
}

void Transport::run_woken() {
  if (woken_.exchange(false) && work_) work_();
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
