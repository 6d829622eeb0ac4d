// Ranks as MPI processes started by mpirun.
#pragma once

#include <memory>

#include "thinreduce/transport/transport.h"

namespace thinreduce {

// Joins MPI_COMM_WORLD. Initialises MPI unless the program has, and then finalises it on
// destruction.
[[nodiscard]] std::unique_ptr<Transport> connect_mpi();

// Returns whether this process was started by mpirun.
[[nodiscard]] bool under_mpi();

// Returns whether this build has the mpi transport.
[[nodiscard]] bool have_mpi();

}  // namespace thinreduce
