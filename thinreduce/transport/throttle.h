// A slow network in real time, without root: wraps any transport in a link of given bandwidth and
// latency.
//
// Each rank has one full-duplex link. A message occupies the sender's link for bytes/bandwidth,
// travels for `latency`, and occupies the receiver's link for bytes/bandwidth again (cut-through:
// an idle path costs bytes/bandwidth + latency once). The wait for a receive returns when the last
// byte would have arrived. The real transfer runs at full speed underneath, so the times are right
// as long as the real path is faster than the link.
//
// Ranks compare their monotonic clocks, so all of them must run on one machine; several machines
// must use their real network instead.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "thinreduce/transport/transport.h"

namespace thinreduce {

struct Link {
  double bytes_per_second = 0;  // 0: unlimited
  Seconds latency{0};

  // Parses "100mbit,5ms", "1gbit", "2.5gbit,200us" or "unlimited". Throws Error{bad_input} for any
  // other text.
  static Link parse(std::string_view text);
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] bool limits() const { return bytes_per_second > 0 || latency.count() > 0; }
};

// One direction of a rank's link: messages pass one after another.
class Lane {
 public:
  explicit Lane(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // Returns when a message has passed whose first byte may start at `earliest`.
  Clock::time_point pass(Clock::time_point earliest, std::size_t bytes);
  [[nodiscard]] Clock::duration duration(std::size_t bytes) const;

 private:
  double bytes_per_second_;
  Clock::time_point free_at_;
};

// Wraps `inner`. All ranks must call it: a short exchange checks that they share a clock.
[[nodiscard]] std::unique_ptr<Transport> throttle(std::unique_ptr<Transport> inner, Link link,
                                                  Seconds timeout = Seconds{30});

}  // namespace thinreduce
