// A message as MPI sees it: its datatype, its memory and its request.
#pragma once

// MPI's C++ interface is deprecated and not used here.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace thinreduce {

// Returns MPI's text for an error code.
[[nodiscard]] std::string describe_mpi_error(int code);
// Throws Error{unavailable} unless `code` is MPI_SUCCESS; `what` names the call.
void check_mpi(int code, std::string_view what);

// Counts in MPI are ints. A longer message is one element of a datatype of its size.
class MpiMessageType {
 public:
  explicit MpiMessageType(std::size_t bytes);
  ~MpiMessageType();
  MpiMessageType(const MpiMessageType&) = delete;
  MpiMessageType& operator=(const MpiMessageType&) = delete;

  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] MPI_Datatype get() const { return owned_ == MPI_DATATYPE_NULL ? MPI_BYTE : owned_; }

 private:
  int count_ = 0;
  MPI_Datatype owned_ = MPI_DATATYPE_NULL;
};

// A message and its memory. MPI must find the memory until the request completes, also after the
// operation was destroyed. Open MPI cancels only receives that no message has matched, so the
// memory is MPI's own as far as callers are concerned, at the price of a copy.
struct MpiMessage {
  explicit MpiMessage(std::size_t size)
      : bytes(size), memory(std::make_unique_for_overwrite<std::byte[]>(size)) {}

  // Returns whether MPI needs the memory no longer.
  bool finished() {
    int done = 1;
    if (request == MPI_REQUEST_NULL) return true;
    return MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  }

  std::size_t bytes;
  std::unique_ptr<std::byte[]> memory;
  MPI_Request request = MPI_REQUEST_NULL;
};

}  // namespace thinreduce
