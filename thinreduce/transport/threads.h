// N ranks as threads of one process: the embedded default, and what the unit tests run on.
// A message is copied once, from the sender's memory to the receiver's.
#pragma once

#include <memory>
#include <vector>

#include "thinreduce/transport/transport.h"

namespace thinreduce {

// One transport a rank, all connected. Each may be used and destroyed on a thread of its own.
[[nodiscard]] std::vector<std::unique_ptr<Transport>> connect_threads(int world);

}  // namespace thinreduce
