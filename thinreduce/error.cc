#include "thinreduce/error.h"

namespace thinreduce {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::bad_spec:
      return "bad_spec";
    case ErrorCode::bad_input:
      return "bad_input";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::bad_frame:
      return "bad_frame";
    case ErrorCode::lost_peer:
      return "lost_peer";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::bad_state:
      return "bad_state";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::internal:
      return "internal";
  }
  return "unknown";
}

}  // namespace thinreduce
