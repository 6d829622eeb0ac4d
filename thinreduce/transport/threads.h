// N ranks as threads of one process: the embedded default, also used by the unit tests. A message
// is copied once, from the sender's memory to the receiver's.
#pragma once

#include <memory>
#include <vector>

#include "thinreduce/export.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

// Returns one transport per rank, all connected. Each may be used and destroyed on its own thread.
[[nodiscard]] THINREDUCE_EXPORT std::vector<std::unique_ptr<Transport>> connect_threads(int world);

}  // namespace thinreduce
