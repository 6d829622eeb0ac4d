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

#include "thinreduce/export.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

struct THINREDUCE_EXPORT Link {
  double bytes_per_second = 0;  // 0: unlimited
  Seconds latency{0};

  // Parses "100mbit,5ms", "1gbit", "2.5gbit,200us" or "unlimited", in capitals or not. Throws
  // Error{bad_input} for any other text, and for less than 1 bit per second or more than an hour.
  static Link parse(std::string_view text);
  [[nodiscard]] std::string to_string() const;
  // Returns whether it limits bandwidth or latency at all.
  [[nodiscard]] bool limits() const;

  bool operator==(const Link&) const = default;
};

// Wraps `inner`, or returns it as it is if the link limits nothing. All ranks must call it: a short
// exchange checks that they share a clock. Throws Error{mismatch} if only some ranks have a link
// that limits, Error{unavailable} if ranks with a link are on several machines.
[[nodiscard]] THINREDUCE_EXPORT std::unique_ptr<Transport> throttle(
    std::unique_ptr<Transport> inner, Link link, Seconds timeout = Seconds{30});

}  // namespace thinreduce
