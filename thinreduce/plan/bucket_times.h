// The times of one bucket in one step, on which the ranks have agreed.
#pragma once

namespace thinreduce {

// All in seconds.
struct BucketTimes {
  double ready = 0;    // from the step's first bucket until this one was submitted; the ranks' mean
  double seconds = 0;  // from then until the mean was there; the most of any rank
  double busy = 0;     // part of `seconds`: encoding and decoding; the largest of all ranks
  double wait = 0;     // part of `seconds`: waiting in the agreement; the largest of all ranks
  double latency = 0;  // of one message; 0: not known
};

}  // namespace thinreduce
