// The cost of reducing a bucket.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "thinreduce/export.h"

namespace thinreduce {

// Seconds per stage.
struct THINREDUCE_EXPORT StageTimes {
  double encode = 0;  // from gradient to payload
  double wire = 0;    // blocked on the transport
  double decode = 0;  // from payload to mean, including partial sums
  double wait = 0;    // until the slowest rank had submitted the bucket too

  StageTimes& operator+=(const StageTimes& other);
};

// The figures of one bucket in one step, or their sum over several buckets.
struct THINREDUCE_EXPORT Report {
  std::uint64_t step = 0;     // number of steps of the bucket so far; the largest in a sum
  std::uint64_t buckets = 0;  // 1, or the number of summands
  std::uint64_t elements = 0;
  std::uint64_t payload_bytes = 0;  // one copy of this rank's compressed gradient
  std::uint64_t bytes_sent = 0;     // by this rank to all peers, headers included
  std::uint64_t bytes_received = 0;
  StageTimes stages;
  double queued = 0;  // seconds from submit to the worker's start
  double total = 0;   // seconds from submit to the end
  // Figures of the method, by name; docs/methods explains them. A sum holds their mean, weighted by
  // elements.
  std::map<std::string, double> statistics;
  // With a guard: ranks whose gradient was far too large, and how many times the median its norm
  // was. In a sum: the maximum per rank.
  std::map<int, double> outliers{};

  Report& operator+=(const Report& other);
};

}  // namespace thinreduce
