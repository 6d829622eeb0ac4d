// A slow network without root: any transport, seen through a link of given bandwidth and latency.
//
// Each rank has one full-duplex link. A message occupies the sender's link for bytes/bandwidth,
// travels for `latency`, and occupies the receiver's link for bytes/bandwidth again (cut-through:
// an idle path costs bytes/bandwidth + latency once). The wait for a receive returns when the last
// byte would have arrived. Real transfer happens underneath as fast as it can, so the figures are
// right as long as the real path is faster than the link.
//
// Ranks compare their monotonic clocks, so all of them must run on one machine; on several, connect
// through the real network instead.
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

  // "100mbit,5ms", "1gbit", "2.5gbit,200us", "unlimited". Throws Error{bad_input} otherwise.
  static Link parse(std::string_view text);
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] bool limits() const { return bytes_per_second > 0 || latency.count() > 0; }
};

// Time on one direction of a rank's link: messages pass one after another.
class Lane {
 public:
  explicit Lane(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // A message whose first byte could start at `earliest` has passed at the returned time.
  Clock::time_point pass(Clock::time_point earliest, std::size_t bytes);
  [[nodiscard]] Clock::duration duration(std::size_t bytes) const;

 private:
  double bytes_per_second_;
  Clock::time_point free_at_;
};

// Takes part in a short exchange with all ranks to check that they share a clock.
[[nodiscard]] std::unique_ptr<Transport> throttle(std::unique_ptr<Transport> inner, Link link,
                                                  Seconds timeout = Seconds{30});

}  // namespace thinreduce
