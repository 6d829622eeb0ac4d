// The two kinds of failure in thinreduce. docs/errors.md explains every code.
//
// Error: what a caller can handle: bad input, a bad frame, a lost peer, a deadline that passed.
// BrokenInvariant: a bug in thinreduce; nothing a caller can do but report it.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace thinreduce {

enum class ErrorCode {
  bad_spec,     // a method's name, option or value that does not exist
  bad_input,    // a gradient that can't be reduced: NaN, Inf, shapes that do not add up
  mismatch,     // ranks disagree: size, spec, step, bucket
  bad_frame,    // bytes from a peer that are cut, altered or of another version
  lost_peer,    // a rank died, left, or gave up
  timeout,      // a wait passed its deadline
  bad_state,    // a state file that is cut, altered, or of another world, rank or method
  unavailable,  // a backend, data file or resource that is not there
};

// The code as it is spelled in docs/errors.md and in JSON.
[[nodiscard]] std::string_view to_string(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

class BrokenInvariant : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws BrokenInvariant with `what` unless `holds`.
inline void ensure(bool holds, const char* what) {
  if (!holds) throw BrokenInvariant(what);
}

}  // namespace thinreduce
