// Replaces mpi.cc in builds without MPI.
#include "thinreduce/error.h"
#include "thinreduce/transport/mpi/mpi.h"

namespace thinreduce {

std::unique_ptr<Transport> connect_mpi() {
  throw Error(ErrorCode::unavailable,
              "this build has no mpi transport; install libopenmpi-dev and build again");
}

bool under_mpi() {
  return false;
}

bool have_mpi() {
  return false;
}

}  // namespace thinreduce
