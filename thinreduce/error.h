// The two kinds of failure in thinreduce. docs/errors.md explains every code.
//
// Error is a failure that a caller can handle: bad input, a bad frame, a lost peer, a timeout.
// BrokenInvariant is a bug in thinreduce; a caller can only report it.
#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

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

// A place in the source. std::source_location is not in every compiler that reads this header.
struct Place {
  const char* file = "";
  int line = 0;

  static constexpr Place current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

// What must hold, and where that was said.
struct Claim {
  constexpr Claim(const char* claim, Place said_at = Place::current())  // NOLINT: implicit
      : text(claim), place(said_at) {}

  const char* text;
  Place place;
};

[[noreturn]] void throw_broken_invariant(const char* claim, const char* file, int line,
                                         std::initializer_list<double> values);

// Throws BrokenInvariant with the claim, its place and the values unless `holds`:
//   ensure(in.size() == out.size(), "add: spans must have the same length", in.size(), out.size());
template <typename... Numbers>
inline void ensure(bool holds, Claim claim, Numbers... values) {
  if (!holds) [[unlikely]] {
    // In parts, so that nothing is stored before it is needed.
    throw_broken_invariant(claim.text, claim.place.file, claim.place.line,
                           {static_cast<double>(values)...});
  }
}

}  // namespace thinreduce
