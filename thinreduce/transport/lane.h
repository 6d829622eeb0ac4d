// The clock of a link that is emulated in real time.
#pragma once

#include <cstddef>
#include <mutex>

#include "thinreduce/transport/busy_times.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

// One direction of a rank's link, which the messages of all tracks share. They pass one after
// another, in the order of their first bytes. A receiver may ask for them in another order: for the
// header of the next message before the payload of this one.
class Lane {
 public:
  explicit Lane(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // Returns when a message has passed whose first byte may start at `earliest`.
  Clock::time_point pass(Clock::time_point earliest, std::size_t bytes);
  [[nodiscard]] Clock::duration duration(std::size_t bytes) const;

 private:
  const double bytes_per_second_;
  std::mutex mutex_;
  BusyTimes busy_;
};

}  // namespace thinreduce
