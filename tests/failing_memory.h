// Memory that runs out on request, for the calling thread alone. A program with failing_memory.cc
// has an operator new that does so.
#pragma once

namespace thinreduce {

// Which allocations fail.
struct Shortage {
  long number = -1;      // the first of them, counted from 0; below 0: none
  bool lasting = false;  // all after it fail, too
};

// Lets allocations of this thread fail from now on.
void begin_shortage(const Shortage& shortage);
// Ends that; returns whether an allocation has failed.
bool end_shortage();

}  // namespace thinreduce
