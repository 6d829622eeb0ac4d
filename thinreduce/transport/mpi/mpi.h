// Ranks as MPI processes started by mpirun.
#pragma once

#include <memory>

#include "thinreduce/transport/transport.h"

namespace thinreduce {

// Joins MPI_COMM_WORLD; initialises MPI when nobody has, and then finalises it on destruction.
[[nodiscard]] std::unique_ptr<Transport> connect_mpi();

// Whether this process was started by mpirun.
[[nodiscard]] bool under_mpi();

[[nodiscard]] bool have_mpi();

}  // namespace thinreduce
