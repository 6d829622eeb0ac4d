// Links that make a sum of some kilobytes travel in one certain way, whatever this machine does.
#pragma once

#include "thinreduce/transport/throttle.h"

namespace thinreduce {

// Without latency, the collective with the lowest fan-in wins.
inline constexpr Link kRingLink{.bytes_per_second = 1e6, .latency = Seconds{0}};
// Bytes cost too much to send them to all.
inline constexpr Link kOwnerLink{.bytes_per_second = 1e6, .latency = Seconds{1e-3}};
// Bytes cost nothing. Sums that cannot be direct go by owners.
inline constexpr Link kDirectLink{.bytes_per_second = 0, .latency = Seconds{1e-3}};

}  // namespace thinreduce
