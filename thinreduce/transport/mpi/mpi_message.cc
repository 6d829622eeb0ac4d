#include "thinreduce/transport/mpi/mpi_message.h"

#include <fmt/format.h>

#include <array>
#include <climits>

#include "thinreduce/error.h"

namespace thinreduce {

std::string describe_mpi_error(int code) {
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

void check_mpi(int code, std::string_view what) {
  if (code == MPI_SUCCESS) return;
  throw Error(ErrorCode::unavailable, fmt::format("{} failed: {}", what, describe_mpi_error(code)));
}

MpiMessageType::MpiMessageType(std::size_t bytes) {
  if (bytes <= INT_MAX) {
    count_ = static_cast<int>(bytes);
    return;
  }
  constexpr std::size_t kBlock = std::size_t{1} << 30;
  std::array<int, 2> counts{static_cast<int>(bytes / kBlock), static_cast<int>(bytes % kBlock)};
  std::array<MPI_Aint, 2> offsets{0, static_cast<MPI_Aint>(bytes / kBlock * kBlock)};
  std::array<MPI_Datatype, 2> types{MPI_DATATYPE_NULL, MPI_BYTE};
  check_mpi(MPI_Type_contiguous(static_cast<int>(kBlock), MPI_BYTE, types.data()), "MPI_Type");
  const int code = MPI_Type_create_struct(2, counts.data(), offsets.data(), types.data(), &owned_);
  MPI_Type_free(types.data());
  check_mpi(code, "MPI_Type_create_struct");
  check_mpi(MPI_Type_commit(&owned_), "MPI_Type_commit");
  count_ = 1;
}

MpiMessageType::~MpiMessageType() {
  // MPI keeps the type as long as an operation uses it.
  if (owned_ != MPI_DATATYPE_NULL) MPI_Type_free(&owned_);
}

}  // namespace thinreduce
