// Ranks as MPI processes started by mpirun.
#pragma once

#include <memory>

#include "thinreduce/export.h"
#include "thinreduce/transport/transport.h"

namespace thinreduce {

// Joins MPI_COMM_WORLD. Initialises MPI unless the program has, and then finalises it on
// destruction.
[[nodiscard]] THINREDUCE_EXPORT std::unique_ptr<Transport> connect_mpi();

// Returns whether this process was started by mpirun.
[[nodiscard]] THINREDUCE_EXPORT bool under_mpi();

// Returns whether this build has the mpi transport.
[[nodiscard]] THINREDUCE_EXPORT bool have_mpi();

}  // namespace thinreduce
