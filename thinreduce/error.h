// The two kinds of failure in thinreduce. docs/errors.md explains every code.
//
// Error is a failure that a caller can handle: bad input, a bad frame, a lost peer, a timeout.
// BrokenInvariant is a bug in thinreduce; a caller can only report it.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "thinreduce/export.h"

namespace thinreduce {

enum class ErrorCode {
  bad_spec,     // an unknown method or option, or an option value that is not allowed
  bad_input,    // a gradient that cannot be reduced: NaN, Inf, shapes that do not fit the bucket
  mismatch,     // ranks that disagree on size, spec, step or bucket
  bad_frame,    // bytes from a peer that are truncated, altered or of another format version
  lost_peer,    // a rank that died, left or gave up
  timeout,      // a wait that passed its deadline
  bad_state,    // a state file that is truncated, altered, or of another world, rank or method
  unavailable,  // a missing backend, data file or resource, or too little memory
  internal,     // a broken invariant: a bug in thinreduce, to be reported
};

// Returns the code as docs/errors.md and JSON spell it.
[[nodiscard]] THINREDUCE_EXPORT std::string_view to_string(ErrorCode code);

class THINREDUCE_EXPORT Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  // Returns the Error{bad_input} for a gradient or second moment with NaN or Inf.
  [[nodiscard]] static Error nonfinite(const std::string& message) {
    Error error(ErrorCode::bad_input, message);
    error.is_nonfinite_ = true;
    return error;
  }
  // Returns the Error{bad_frame} for a sum or residual that overflowed float32 inside a method.
  [[nodiscard]] static Error overflow(const std::string& message) {
    Error error(ErrorCode::bad_frame, message);
    error.is_overflow_ = true;
    return error;
  }
  [[nodiscard]] ErrorCode code() const { return code_; }
  // Returns whether nonfinite() made it: all ranks can skip the step and go on.
  [[nodiscard]] bool is_nonfinite() const { return is_nonfinite_; }
  // Returns whether overflow() made it: the gradients are too large, the bytes were not altered.
  [[nodiscard]] bool is_overflow() const { return is_overflow_; }

 private:
  ErrorCode code_;
  bool is_nonfinite_ = false;
  bool is_overflow_ = false;
};

class THINREDUCE_EXPORT BrokenInvariant : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace thinreduce
