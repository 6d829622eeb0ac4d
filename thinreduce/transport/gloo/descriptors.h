// File descriptors for the connections of a world.
#pragma once

namespace thinreduce {

// Makes sure that this process can open `more` file descriptors. Raises its soft limit if needed,
// and leaves the program as many as it had before. Throws Error{unavailable} that names both
// numbers if the hard limit is too low.
void require_descriptors(int rank, int world, unsigned long more);

}  // namespace thinreduce
